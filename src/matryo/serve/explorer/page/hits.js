// The nearest rows at one dim: cards that glide to their places, marked where they differ from the full dim.

import { $, glide, keyOf, make, picture } from "./dom.js"

// `hits` and `best` are lists of ids; `items` maps the key of an id to its row.
export function showHits({ hits, best, items, full, onpick }) {
  const list = $("hits"), right = new Set(best.map(keyOf))
  const pictures = hits.some((id) => items.get(keyOf(id))?.image)
  const old = new Map([...list.children].map((card) => [card.dataset.key, card]))
  list.classList.toggle("texts", !pictures)
  glide(list, () => {
    list.replaceChildren(...hits.map((id, place) => {
      const key = keyOf(id), item = items.get(key) ?? { id, title: String(id), text: "", image: "" }
      const card = old.get(key) ?? makeCard(item, key)
      mark(card, item, place + 1, right.has(key), full)
      card.firstChild.onclick = () => onpick(item)
      return card
    }))
  })
  showMissed(best.filter((id) => !hits.some((hit) => keyOf(hit) === keyOf(id))), items, full, onpick)
}

function makeCard(item, key) {
  const words = make("span", { class: "words" }, make("span", { class: "title" }, item.title))
  if (item.text) words.append(make("span", { class: "more" }, item.text))
  const button = make("button", { type: "button" }, picture(item, 64), words, make("span", { class: "badge", "aria-hidden": "true" }, "≠"))
  const card = make("li", { class: "card" }, button)
  card.dataset.key = key
  return card
}

function mark(card, item, place, right, full) {
  card.classList.toggle("wrong", !right)
  const note = right ? "" : `, not among the nearest at ${full} dims`
  card.firstChild.setAttribute("aria-label", `${place}: ${item.title}${item.text ? `, ${item.text.slice(0, 60)}` : ""}${note}`)
  card.firstChild.title = [item.title, item.text].filter(Boolean).join(" · ")
}

function showMissed(missed, items, full, onpick) {
  const room = $("missed")
  if (!missed.length) {
    room.replaceChildren(make("p", { class: "soft small" }, `Nothing is missing: these are the nearest at ${full} dims.`))
    return
  }
  room.replaceChildren(
    make("p", { class: "soft small" }, `Missing here, but among the nearest at ${full} dims:`),
    make("ul", { class: "ghosts" }, ...missed.map((id) => {
      const item = items.get(keyOf(id)) ?? { id, title: String(id), image: "" }
      return make("li", {}, make("button", {
        type: "button", title: item.title, "aria-label": `missing: ${item.title}`, onclick: () => onpick(item),
      }, picture(item, 32) ?? make("span", { class: "title" }, item.title)))
    })),
  )
}
