"use strict";
// The choice on the first screen. matryo/report/answer.py makes the same choice; a test compares both.
const { models, scales } = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const unique = (values) => [...new Set(values)];
const prose = (text) => text.replaceAll("1-NN", "1\u2011NN").replaceAll(" %", "\u00a0%");

// The smallest of dims that keeps the share, as every larger one does; null if the largest does not.
function smallestOf(curve, dims, keep, errors) {
  let chosen = null;
  for (let i = curve.dims.length - 1; i >= 0; i--) {
    if (!dims.includes(curve.dims[i])) continue;
    if (curve.kept[i] + errors * curve.error[i] < keep) break;
    chosen = curve.dims[i];
  }
  return chosen;
}

function smallest(model, curves, keep, errors = 0) {
  const each = curves.map((curve) => smallestOf(curve, model.dims, keep, errors));
  if (!curves.length || each.includes(null)) return null;
  const least = Math.max(...each);
  return model.dims.find((dim) => dim >= least && curves.every((curve) => curve.dims.includes(dim))) ?? null;
}

function covered(model, choice) {
  return model.curves.filter((curve) =>
    ["all", curve.metric].includes(choice.metric) && ["all", curve.split].includes(choice.split));
}

function cost(part, whole, unit) {
  return part === whole ? `${part} ${unit}` : `${part} instead of ${whole} ${unit}`;
}

function on(choice, curves) {
  const [metrics, splits] = [unique(curves.map((c) => c.metric)), unique(curves.map((c) => c.split))];
  const metric = choice.metric === "all" && metrics.length > 1 ? `each of ${metrics.length} metrics` : curves[0].metric;
  const split = choice.split === "all" && splits.length > 1 ? `each of ${splits.length} splits` : curves[0].split;
  return `by ${metric} on ${split}`;
}

function answer(choice) {
  const model = models[choice.model], curves = covered(model, choice), full = model.dims.at(-1);
  const dim = smallest(model, curves, choice.keep), share = `${+(100 * choice.keep).toFixed(1)} %`;
  const facts = { dim, warning: "", other: "", kept: "", range: "", bytes: "", flops: "", table: table(model, choice) };
  let best = null;
  for (const other of models) {
    if (other === model || other.source !== model.source) continue;
    const need = smallest(other, covered(other, choice), choice.keep);
    if (need && (!best || need < best[0] || (need === best[0] && other.name < best[1]))) best = [need, other.name];
  }
  if (best && best[0] < (dim ?? Infinity)) facts.other = `${best[1]} needs only ${best[0]} dims.`;
  facts.warning = warning(model, curves, choice.keep);
  if (dim === null) {
    facts.headline = `No dim keeps ${share}`;
    facts.why = `Even ${full} dims of ${model.name} keep less than ${share} of the quality of ${model.source} ` +
      `${on(choice, curves)}.`;
    return facts;
  }
  facts.headline = dim === full ? `Use all ${dim} dims` : `Use ${dim} of ${full} dims`;
  facts.why = `${dim} is the smallest dim of ${model.name} that keeps at least ${share} of the full-dim quality ` +
    `${on(choice, curves)}.`;
  const kept = (curve) => curve.kept[curve.dims.indexOf(dim)];
  const lowest = curves.reduce((one, other) => (kept(other) < kept(one) ? other : one));
  if (lowest.error[lowest.dims.indexOf(dim)]) facts.kept = `${lowest.texts[lowest.dims.indexOf(dim)]}: ${lowest.metric} on ${lowest.split}`;
  const [possible, certain] = [1, -1].map((errors) => smallest(model, curves, choice.keep, errors) ?? full);
  facts.range = possible === certain ? `${dim} dims` : `${possible} to ${certain} dims`;
  const at = model.dims.indexOf(dim);
  facts.bytes = cost(model.bytes[at], model.bytes.at(-1), "bytes");
  const searched = curves.reduce((one, other) => (other.database > one.database ? other : one));
  if (searched.database) facts.flops = cost(searched.flops[at], searched.flops.at(-1), "MFLOPs");
  return facts;
}

// The metric on which the splits disagree most, with its easiest and its hardest split.
function warning(model, curves, keep) {
  const full = model.dims.at(-1);
  let text = "", most = 1;
  for (const metric of unique(curves.map((c) => c.metric))) {
    const needs = curves.filter((c) => c.metric === metric)
      .map((c) => [smallestOf(c, model.dims, keep, 0) ?? 2 * full, c.split]);
    const [low, easy] = needs.reduce((one, other) => (other[0] < one[0] ? other : one));
    const [high, hard] = needs.reduce((one, other) => (other[0] > one[0] ? other : one));
    if (high / low > most) {
      most = high / low;
      const needed = high <= full ? `${high} are needed` : "no dim suffices";
      text = `The splits disagree: by ${metric}, ${low} dims suffice on ${easy}, but ${needed} on ${hard}.`;
    }
  }
  return text;
}

function table(model, choice) {
  const metrics = unique(model.curves.map((c) => c.metric));
  const lines = unique(model.curves.map((c) => c.split)).map((split) => [split, ...metrics.map((metric) => {
    const curve = model.curves.find((c) => c.split === split && c.metric === metric);
    return curve ? String(smallestOf(curve, model.dims, choice.keep, 0) ?? "none") : "–";
  })]);
  return [["split", ...metrics], ...lines];
}

function fill(select, values) {
  const before = select.value;
  select.replaceChildren(...["all", ...values].map((value) => new Option(value, value)));
  select.value = values.includes(before) ? before : "all";
}

function row(tag, cells) {
  const line = document.createElement("tr");
  for (const [i, cell] of cells.entries()) {
    const part = line.appendChild(document.createElement(tag));
    part.textContent = tag === "th" ? prose(cell) : cell;
    if (i === 0) part.className = "text";
  }
  return line;
}

function show() {
  const model = models[element("model").value];
  fill(element("metric"), unique(model.curves.map((c) => c.metric)));
  fill(element("split"), unique(model.curves.map((c) => c.split)));
  const choice = {
    model: +element("model").value, metric: element("metric").value, split: element("split").value,
    keep: element("keep").value / 100,
  };
  if (!covered(model, choice).length) choice.split = element("split").value = "all";
  const facts = answer(choice), share = `${element("keep").value} %`;
  element("keep-value").textContent = element("table-keep").textContent = share;
  for (const id of ["headline", "why", "warning", "other", "kept", "range", "bytes", "flops"]) {
    element(id).textContent = prose(facts[id]);
    (element(id).closest("div:not(.choice)") ?? element(id)).hidden = !facts[id];
  }
  const [heads, ...lines] = facts.table;
  element("table").replaceChildren(...lines.map((line) => row("td", line)));
  element("table").previousElementSibling.replaceChildren(row("th", heads));
  const chosen = new Set(covered(model, choice));
  models.forEach((one, i) => one.curves.forEach((curve, j) => {
    for (const part of ["line", "bar"]) {
      const group = element(`answer-${part}-${i}-${j}`);
      if (chosen.has(curve)) group.removeAttribute("display"); else group.setAttribute("display", "none");
    }
  }));
  const across = scales.x * Math.log2((facts.dim ?? scales.dim) / scales.dim);
  element("answer-mark-dim").setAttribute("transform", `translate(${across} 0)`);
  element("answer-mark-dim").setAttribute("opacity", facts.dim ? 1 : 0);
  element("answer-mark-keep").setAttribute("transform", `translate(0 ${scales.y * (scales.keep - choice.keep)})`);
}

element("controls").hidden = false;
element("controls").addEventListener("input", show);
show();
