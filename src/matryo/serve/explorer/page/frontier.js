// The planner's frontier: recall against cost, a point per plan; a click searches with the plan.

import { $, make, percent, short } from "./dom.js"

const WIDE = 560, HIGH = 300, LEFT = 56, RIGHT = 18, TOP = 16, BOTTOM = 44

// `choice` is null where no plan was made yet; `onmake` makes one, `onpick` searches with a point of the frontier.
export function showFrontier({ choice, current, onpick, onmake }) {
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
  $("promise").textContent = `${choice.message}. Choose a plan to search with it.`
  const unit = choice.frontier.every((point) => point.latency !== null) ? "latency" : "mflops"
  $("frontier").replaceChildren(chart(choice, unit, current, onpick), table(choice, current, onpick))
}

export const plansOf = (choice) => (choice?.frontier ?? []).map((point) => ({
  ...point, most: Object.fromEntries(["latency", "bytes", "mflops"].map((name) => [name, Math.max(...choice.frontier.map((one) => one[name] ?? 0))])),
}))

function chart(choice, unit, current, onpick) {
  const plans = plansOf(choice), costs = plans.map((plan) => plan[unit]), least = Math.min(...plans.map((plan) => plan.recall))
  const [low, high] = [Math.log(Math.min(...costs) * .9), Math.log(Math.max(...costs) * 1.1)]
  const floor = Math.max(0, Math.floor(least * 20 - .01) / 20), span = 1 - floor || 1
  const x = (cost) => LEFT + (Math.log(cost) - low) / (high - low || 1) * (WIDE - LEFT - RIGHT)
  const y = (recall) => TOP + (1 - recall) / span * (HIGH - TOP - BOTTOM)
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, "aria-hidden": "true" })
  for (let tick = 0; tick <= 4; tick++) {
    const recall = floor + span * tick / 4
    svg.append(make("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(recall), y2: y(recall), class: "grid" }),
      make("text", { x: LEFT - 8, y: y(recall) + 4, "text-anchor": "end" }, `${Number((100 * recall).toFixed(1))} %`))
  }
  for (let tick = 0; tick <= 3; tick++) {
    const cost = Math.exp(low + (high - low) * tick / 3)
    svg.append(make("text", { x: x(cost), y: HIGH - 22, "text-anchor": tick === 3 ? "end" : tick ? "middle" : "start" }, Number(cost.toPrecision(2))))
  }
  svg.append(make("text", { x: WIDE - RIGHT, y: HIGH - 4, "text-anchor": "end" }, unit === "latency" ? "ms per query (log)" : "MFLOPs per query (log)"))
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
  make("span", { class: "outline" }, plan.outline),
  make("span", { class: "soft" }, [
    percent(plan.recall), plan.latency === null ? null : `${short(plan.latency)} ms`, `${short(plan.mflops)} MFLOPs`,
    plan.chosen ? "chosen" : plan.held ? null : "not promised",
  ].filter(Boolean).join(" · "))))))
}
