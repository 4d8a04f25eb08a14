// The dial (slider, sentence, cost and recall) and the table of every dim.

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
}

export function showDial({ dims, dim, plan, kept, of }) {
  const full = dims.at(-1), slider = $("slider")
  slider.value = String(dims.indexOf(dim))
  slider.setAttribute("aria-valuetext", plural(dim, "dim"))
  $("slider").classList.toggle("off", Boolean(plan))
  $("dim").replaceChildren(...(plan
    ? [make("span", { class: "number plan" }, plan.outline), make("span", { class: "unit" }, "plan")]
    : [make("span", { class: "number" }, count(dim)), make("span", { class: "unit" }, dim === 1 ? "dim" : "dims")]))
  const some = kept === of ? `All ${of}` : `${kept} of the ${of}`
  const what = `nearest at ${full} dims`
  $("verdict").textContent = plan ? `${some} ${what} are found by this plan.`
    : dim === full ? `These are the nearest at the full dim. Move the slider to pay less.`
    : `${some} ${what} are found, ${price(full / dim)}.`
}

const price = (times) => (times === 2 ? "at half of the bytes" : `at 1/${Number(times.toFixed(1))} of the bytes`)

// What the dim costs, beside the full dim. `costs` is the answer of the server, or null while it measures.
export function showFacts({ costs, dim, plan }) {
  const full = costs?.dims.at(-1), own = costs?.dims.find((row) => row.dim === dim)
  const facts = plan
    ? [["recall", percent(plan.recall), plan.recall],
       ["bytes read per query", short(plan.bytes), plan.bytes / plan.most.bytes],
       ["MFLOPs per query", short(plan.mflops), plan.mflops / plan.most.mflops],
       ["ms per query", plan.latency === null ? "–" : short(plan.latency), (plan.latency ?? 0) / (plan.most.latency || 1)]]
    : [[`recall@${costs?.k ?? 10}`, own ? percent(own.recall) : "…", own?.recall ?? 0],
       ...(costs && !costs.same ? [] : [[`same ${costs?.same ?? "class"} first`, own ? percent(own.same) : "…", own?.same ?? 0]]),
       ["bytes per vector", own ? count(own.bytes) : "…", own ? own.bytes / full.bytes : 0],
       ["MFLOPs per query", own ? short(own.mflops) : "…", own ? own.mflops / full.mflops : 0],
       ["ms per query", own ? short(own.ms) : "…", own ? own.ms / Math.max(...costs.dims.map((row) => row.ms)) : 0]]
  $("facts").replaceChildren(...facts.map(([name, value, share], place) => {
    const bar = make("span", { class: place < facts.length - 3 ? "bar good" : "bar" })
    bar.style.setProperty("--share", String(Math.min(1, share)))
    return make("div", {}, make("dt", {}, name), make("dd", {}, value), bar)
  }))
  $("basis").textContent = !costs ? "Measuring …"
    : plan ? "Recall and cost are those of the planner’s test."
    : costs.queries ? `Recall is the share of the nearest rows at ${full.dim} dims that are found, over ${plural(costs.queries, "random row")}. ` +
      "Bytes and MFLOPs count a scan; ms is measured here." : ""
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
