// The planner's frontier: recall against cost, a point per plan; a click searches with the plan.

import { $, make, percent, short } from "./dom.js"

const FEW = 500   // rows, of which too few can be queries for a promise
const HIGH = 300, LEFT = 60, RIGHT = 18, TOP = 24, BOTTOM = 48

// `choice` is null where no plan was made yet; `onmake` makes one, `onpick` searches with a point of the frontier.
export function showFrontier({ choice, rows, current, onpick, onmake }) {
  if (!choice && rows < FEW) {
    $("promise").textContent = `An index of ${rows} rows needs no plan: a search of all of them is fast enough.`
    return void $("frontier").replaceChildren()
  }
  if (!choice) {
    $("promise").textContent = "A plan scores all rows with few dims, and the best of them again with more."
    const button = make("button", { type: "button", class: "primary" }, "Find plans")
    button.addEventListener("click", async () => {
      button.disabled = true
      button.textContent = "Measuring plans …"
      await onmake()
    })
    $("frontier").replaceChildren(button)
    return
  }
  const several = choice.frontier.length > 1
  $("promise").textContent = `${choice.message}.${several ? " Choose a plan to search with it." : ""}`
  const unit = choice.frontier.every((point) => point.latency !== null) ? "latency" : "mflops"
  $("frontier").replaceChildren(...(several ? [chart(choice, unit, current, onpick)] : []), table(choice, current, onpick))
}

// {"stages": [{"dim": 16, "keep": 80}, {"dim": 256, "keep": 10}]} → "all rows at 16 dims, the best 80 at 256"
export function inWords({ stages, probe, ef }) {
  const rows = ef ? "a walk over the graph" : probe ? `${Number((100 * probe).toPrecision(3))} % of the rows` : "all rows"
  return stages.map(({ dim, precision }, place) => {
    const before = stages[place - 1], some = place ? `the best ${before.margin === undefined ? "" : "≤ "}${before.keep}` : rows
    return `${some} at ${dim}${place ? "" : dim === 1 ? " dim" : " dims"}${precision ? ` in ${precision}` : ""}`
  }).join(", ")
}

// The points of the frontier, each with the first one, which is exact search.
export const plansOf = (choice) => (choice?.frontier ?? []).map((point) => ({ ...point, exact: choice.frontier[0] }))

function chart(choice, unit, current, onpick) {
  const wide = Math.min(640, Math.max(280, $("frontier").clientWidth))   // drawn at its size, so that text stays readable
  const plans = plansOf(choice), costs = plans.map((plan) => plan[unit]), least = Math.min(...plans.map((plan) => plan.recall))
  const [low, high] = [Math.log(Math.min(...costs) * .9), Math.log(Math.max(...costs) * 1.1)]
  const floor = Math.max(0, Math.floor(least * 20 - .01) / 20), span = 1 - floor || 1
  const x = (cost) => LEFT + (Math.log(cost) - low) / (high - low || 1) * (wide - LEFT - RIGHT)
  const y = (recall) => TOP + (1 - recall) / span * (HIGH - TOP - BOTTOM)
  const svg = make("svg", { viewBox: `0 0 ${wide} ${HIGH}`, "aria-hidden": "true" })
  const step = [.01, .02, .05, .1, .2].find((each) => span / each < 5.01)
  for (let recall = 1; recall > floor - 1e-9; recall -= step) {
    svg.append(make("line", { x1: LEFT, x2: wide - RIGHT, y1: y(recall), y2: y(recall), class: "grid" }),
      make("text", { x: LEFT - 8, y: y(recall) + 4, "text-anchor": "end" }, `${Number((100 * recall).toFixed(1))} %`))
  }
  for (let tick = 0; tick <= 3; tick++) {
    const cost = Math.exp(low + (high - low) * tick / 3)
    svg.append(make("text", { x: x(cost), y: HIGH - 28, "text-anchor": tick === 3 ? "end" : tick ? "middle" : "start" }, Number(cost.toPrecision(2))))
  }
  svg.append(make("text", { x: wide - RIGHT, y: HIGH - 8, "text-anchor": "end" }, unit === "latency" ? "ms per query (log)" : "MFLOPs per query (log)"))
  svg.append(make("text", { x: LEFT, y: 11, class: "axis" }, "recall"))
  const line = plans.map((plan, place) => `${place ? "L" : "M"}${x(plan[unit])} ${y(plan.recall)}`).join("")
  svg.append(make("path", { d: line, class: "line" }))
  for (const plan of plans) {
    const marks = [plan.held ? "held" : "failed", plan.chosen ? "chosen" : "", plan.outline === current ? "on" : ""].join(" ")
    const point = make("g", { class: `point ${marks}`, onclick: () => onpick(plan) },
      make("circle", { cx: x(plan[unit]), cy: y(plan.recall), r: 20, class: "target" }),
      make("circle", { cx: x(plan[unit]), cy: y(plan.recall), r: plan.outline === current ? 9 : 6 }))
    svg.append(point)
  }
  return svg
}

// The plans as buttons: for keys and screen readers, and for those who look for a number.
function table(choice, current, onpick) {
  return make("ul", { class: "plans" }, ...plansOf(choice).map((plan) => make("li", {}, make("button", {
    type: "button", "aria-pressed": String(plan.outline === current), onclick: () => onpick(plan),
    "data-plan": plan.outline,
  },
  make("span", { class: "outline" }, inWords(plan.plan)),
  make("span", { class: "soft" }, [
    percent(plan.recall, 1), plan.latency === null ? null : `${short(plan.latency)} ms`, `${short(plan.mflops)} MFLOPs`,
    plan.chosen ? "chosen" : plan.held ? null : "not promised",
  ].filter(Boolean).join(" · "))))))
}
