// The dial (slider, sentence, cost and recall) and the table of every dim.

import { inWords } from "./frontier.js"
import { $, count, keyOf, make, percent, picture, plural, short } from "./dom.js"

export function setUpSlider(dims, onchange) {
  const slider = $("slider")
  slider.max = String(dims.length - 1)
  slider.oninput = () => onchange(dims[Number(slider.value)])
  const last = dims.length - 1
  $("ticks").replaceChildren(...dims.map((dim, place) => {
    const tick = make("span", {}, String(dim))
    tick.style.setProperty("--at", String(last ? place / last : 0))
    return tick
  }))
  $("ticks").classList.toggle("many", dims.length > 9)
  for (const id of ["slider", "ticks"]) $(id).hidden = !last
}

export function showDial({ dims, dim, plan, kept, of }) {
  const full = dims.at(-1), slider = $("slider")
  slider.value = String(dims.indexOf(dim))
  slider.setAttribute("aria-valuetext", plural(dim, "dim"))
  $("slider").classList.toggle("off", Boolean(plan))
  $("dim").replaceChildren(...(plan
    ? [make("span", { class: "number plan" }, inWords(plan.plan))]
    : [make("span", { class: "number" }, count(dim)), make("span", { class: "unit" }, dim === 1 ? "dim" : "dims")]))
  const some = kept === of ? `All ${of}` : kept ? `${kept} of the ${of}` : `None of the ${of}`
  const what = `nearest at ${full} dims`
  $("verdict").textContent = plan ? `${some} ${what} are found by this plan.`
    : dims.length === 1 ? "This index has one dim, so there is no smaller one to compare."
    : dim === full ? `These are the nearest at the full dim. Move the slider to pay less.`
    : `${some} ${what} are found, ${price(full / dim)}.`
  if (dims.length === 1 && !plan) {
    const command = make("code", {}, `matryo index FOLDER VECTORS --dims ${smaller(full)} --rotate`)
    $("verdict").append(make("span", { class: "soft small cure" }, "Index the vectors with more dims: ", command))
  }
}

const smaller = (full) => [8, 4, 2, 1].map((part) => Math.floor(full / part)).filter(Boolean).join(",")

const price = (times) => (times === 2 ? "at half of the bytes" : `at 1/${Number(times.toFixed(1))} of the bytes`)

// What the dim costs and finds, beside the full dim. `costs` is the answer of the server, or null while it measures.
export function showFacts({ costs, dim, plan }) {
  const facts = plan ? planFacts(plan) : dimFacts(costs, dim)
  $("facts").replaceChildren(...facts.map(({ name, value, whole, share, good }) => {
    const bar = make("span", { class: good ? "bar good" : "bar" })
    bar.style.setProperty("--share", String(Math.max(0, Math.min(1, share || 0))))
    return make("div", {}, make("dt", {}, name), make("dd", {}, value, whole ? make("small", { class: "soft" }, whole) : null), bar)
  }))
  $("basis").textContent = plan ? "Recall and cost are those of the planner’s test, beside exact search."
    : !costs ? "Measuring …"
    : costs.queries ? `Recall: the share of the nearest at ${costs.dims.at(-1).dim} dims that are found, for ${plural(costs.queries, "random row")}. ` +
      "Bytes and MFLOPs are those of a scan; ms is measured here, in a batch of these rows." : ""
}

function dimFacts(costs, dim) {
  const own = costs?.dims.find((row) => row.dim === dim), full = costs?.dims.at(-1)
  const at = (value) => ` ${value} at ${full.dim}`
  const cost = (name, field, format) => ({
    name, value: own ? format(own[field]) : "…", whole: own && own !== full ? at(format(full[field])) : "", share: own && own[field] / full[field],
  })
  const found = [{ name: `recall@${costs?.k ?? 10}`, value: own ? percent(own.recall) : "…", share: own?.recall, good: true }]
  if (costs?.same) {
    found.push({ name: `nearest: same ${costs.same}`, value: percent(own.same), whole: own === full ? "" : at(percent(full.same)), share: own.same, good: true })
  }
  return [...found, cost("bytes per vector", "bytes", count), cost("MFLOPs per query", "mflops", short), cost("ms per query", "ms", short)]
}

function planFacts(plan) {
  const cost = (name, field) => ({ name, value: short(plan[field]), whole: ` ${short(plan.exact[field])} for exact`, share: plan[field] / plan.exact[field] })
  return [{ name: "recall", value: percent(plan.recall, 1), share: plan.recall, good: true }, cost("bytes per query", "bytes"),
    cost("MFLOPs per query", "mflops"), ...(plan.latency === null ? [] : [cost("ms per query", "latency")])]
}

// A row per dim, each with its hits; the row that the slider is on is marked.
export function showEvery({ results, best, items, current, onpick }) {
  const right = new Set(best.map(keyOf)), open = document.activeElement?.dataset?.row
  $("rows").replaceChildren(...results.map(({ name, label, hits, dim }) => {
    const kept = hits.filter((id) => right.has(keyOf(id))).length
    const button = make("button", {
      type: "button", class: "row", "aria-pressed": String(current === name), "data-row": name,
      "aria-label": `${label}: ${kept} of ${best.length} found`, onclick: () => onpick(dim),
    },
    make("span", { class: "label" }, label),
    make("span", { class: "kept" }, `${kept}/${best.length}`),
    make("span", { class: "strip" }, ...hits.map((id) => {
      const item = items.get(keyOf(id)) ?? { title: String(id), image: "" }
      const cell = make("span", { class: right.has(keyOf(id)) ? "cell" : "cell wrong", title: item.title })
      cell.append(picture(item, 32) ?? make("span", { class: "title" }, item.title))
      return cell
    })))
    return button
  }))
  if (open) [...$("rows").children].find((row) => row.dataset.row === open)?.focus()
}
