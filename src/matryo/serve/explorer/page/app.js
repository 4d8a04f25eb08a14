// The page: what is asked, of which index, at which dim; and who shows it.

import { $, count, keyOf, make, plural } from "./dom.js"
import { get, one, post } from "./api.js"
import { setUpSlider, showDial, showEvery, showFacts } from "./dims.js"
import { plansOf, showFrontier } from "./frontier.js"
import { showHits } from "./hits.js"
import { Map2 } from "./map.js"
import { describeQueries, setUpQuery, showAsked, showChoices } from "./query.js"

const known = new Map()   // by index: {about, costs, choice, maps, rows}
const state = { index: null, dim: null, plan: null, query: null, answer: null, turn: 0, mapTurn: 0 }
const map = new Map2(row, pick)
const here = () => known.get(state.index)

start().catch(complain)

async function start() {
  setUpQuery(ask, trouble)
  const { indexes } = await get("v1/indexes")
  if (!indexes.length) {
    $("about").textContent = "This server has no index to explore. Start one: matryo serve --index FOLDER"
    return
  }
  if (indexes.length > 1) showSwitch(indexes.map((index) => index.name))
  await enter(indexes[0].name)
}

function showSwitch(names) {
  $("indexes").hidden = false
  $("indexes").append(...names.map((name, place) => make("label", {},
    make("input", { type: "radio", name: "index", value: name, checked: place === 0, onchange: () => enter(name).catch(complain) }),
    make("span", {}, name))))
}

// Show another index: the query and the dim stay, if it has them.
async function enter(name) {
  state.index = name
  if (!known.has(name)) known.set(name, { about: await get(one(name, "explore")), costs: null, choice: null, maps: new Map(), rows: new Map() })
  if (state.index !== name) return
  const { about } = here(), { dims } = about
  $("about").textContent = `${plural(about.count, "row")} of ${count(dims.at(-1))} dims${trained(about)}.`
  $("credits").replaceChildren(...about.credits.map((line) => make("p", {}, line)))
  describeQueries(about)
  if (!dims.includes(state.dim)) state.dim = dims[Math.min(1, dims.length - 1)]
  state.plan = null
  setUpSlider(dims, (dim) => { state.plan = null; state.dim = dim; show() })
  if (!about.count) {
    for (const id of ["hero", "every", "atlas", "plans"]) $(id).hidden = true
    return trouble("This index is empty: add rows to it.")
  }
  const first = state.wanted ?? { id: about.examples[0].id }
  const others = [measure(name), plans(name)]
  await ask(first).catch(() => ask({ id: about.examples[0].id }))
  await Promise.all(others)
}

function trained({ model, dims }) {
  if (!model) return ""
  const own = model.dims.filter((dim) => dims.includes(dim))
  return own.length > 1 ? `, by a model trained at ${own.join(", ")}` : `, by a model trained at ${own.at(-1) ?? model.dims.at(-1)} only, then truncated`
}

// ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

function pick(item) {
  $("typed").value = ""
  ask({ id: item.id }).catch(complain)
}

// Search at every dim in one request. A later question overtakes an earlier one.
async function ask(query) {
  const turn = ++state.turn, { about } = here()
  state.wanted = query
  const { typed, ...rest } = query
  const body = typed === undefined ? rest : about.reads.includes("text") ? { text: typed } : { words: typed }
  $("trouble").hidden = true
  document.body.classList.add("busy")
  try {
    const answer = await post(one(state.index, "compare"), { ...body, k: 10, ...(state.plan && { plan: state.plan.plan }) })
    if (turn !== state.turn) return
    if (body.words && answer.query === null) {
      state.wanted = state.query
      return trouble(`No row has the words “${typed}”.`)
    }
    answer.items = new Map(answer.items.map((item) => [keyOf(item.id), item]))
    const chosen = state.choices?.some((item) => keyOf(item.id) === keyOf(answer.query))
    if (answer.matches.length) state.choices = answer.matches.map((id) => answer.items.get(keyOf(id)))
    else if (!chosen || !state.choices) state.choices = about.examples
    Object.assign(state, { query, answer })
    show()
  } catch (error) {
    if (turn === state.turn && state.answer) complain(error)
    else throw error
  } finally {
    if (turn === state.turn) document.body.classList.remove("busy")
  }
}

async function measure(name) {
  known.get(name).costs ??= await get(one(name, "dims"))
  if (state.index === name && state.answer) showFacts({ costs: here().costs, dim: state.dim, plan: state.plan })
}

async function plans(name) {
  known.get(name).choice ??= (await get(one(name, "frontier"))).choice
  if (state.index === name) showPlans()
}

async function row(id) {
  const { rows } = here(), key = keyOf(id)
  if (!rows.has(key)) rows.set(key, post(one(state.index, "items"), { ids: [id] }).then(({ items }) => items[0], () => null))
  return rows.get(key)
}

// ── showing ─────────────────────────────────────────────────────────────────────────────────────────────────────

function show() {
  const { about, costs } = here(), { answer, dim, plan } = state
  if (!answer) return
  const lists = new Map(answer.results.map((result) => [result.dim, result.hits.map((hit) => hit.id)]))
  const full = about.dims.at(-1), best = lists.get(full)
  const hits = plan && answer.plan ? answer.plan.map((hit) => hit.id) : lists.get(dim)
  const right = new Set(best.map(keyOf)), kept = hits.filter((id) => right.has(keyOf(id))).length
  for (const id of ["hero", "every", "atlas", "plans"]) $(id).hidden = false
  $("every").hidden = about.dims.length === 1 && !plan
  const asked = state.query.image ? { image: state.query.image } : answer.items.get(keyOf(answer.query))
  showAsked(asked)
  showChoices(state.choices, answer.query, pick)
  showDial({ dims: about.dims, dim, plan, kept, of: best.length })
  showFacts({ costs, dim, plan })
  showHits({ hits, best, items: answer.items, full, onpick: pick })
  const results = about.dims.map((one) => ({ name: String(one), label: plural(one, "dim"), hits: lists.get(one), dim: one }))
  if (plan && answer.plan) results.push({ name: "plan", label: "plan", hits, dim: null })
  showEvery({ results, best, items: answer.items, current: plan ? "plan" : String(dim), onpick: (one) => {
    if (one !== null) { state.plan = null; state.dim = one; show() }
  } })
  showPlans()
  showMap(plan ? full : dim, hits).catch(complain)
}

function showPlans() {
  const name = state.index, { choice, about } = here()
  showFrontier({
    choice, rows: about.count, current: state.plan?.outline ?? null,
    onpick: (plan) => {
      state.plan = plansOf(choice).find((own) => own.outline === plan.outline)
      ask(state.wanted).then(() => [...document.querySelectorAll("[data-plan]")].find((own) => own.dataset.plan === plan.outline)?.focus({ preventScroll: true }), complain)
    },
    onmake: () => post(one(name, "plan"), { recall: .99, k: 10 }).then((made) => { known.get(name).choice = made }, complain).finally(showPlans),
  })
}

// Points are asked for once per dim; the places of the query and its hits each time.
async function showMap(dim, hits) {
  const turn = ++state.mapTurn, name = state.index, { answer } = state, { about, maps } = here()
  if (about.count < 3) return void ($("atlas").hidden = true)
  const ids = [...(answer.query === null ? [] : [answer.query]), ...hits]
  const data = await post(one(name, "map"), { dim, ids, points: !maps.has(dim) })
  if (turn !== state.mapTurn) return
  if (!maps.has(dim)) maps.set(dim, data)
  map.query = answer.query === null ? null : keyOf(answer.query)
  map.show({ ...maps.get(dim), index: name, marks: data.marks })
}

function trouble(message) {
  $("trouble").textContent = message
  $("trouble").hidden = false
}

function complain(error) {
  trouble(`${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`)
}
