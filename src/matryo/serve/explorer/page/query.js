// What is searched for: words, a picture, or a row that is clicked; and the rows offered to search with.

import { $, keyOf, make, picture } from "./dom.js"

const MOST_BYTES = 8 << 20

// `onquery` is called with the body of a request: {words}, {text}, {image} or {id}.
export function setUpQuery(onquery, onproblem) {
  $("form").addEventListener("submit", (event) => {
    event.preventDefault()
    const typed = $("typed").value.trim()
    if (typed) onquery({ typed })
  })
  $("file").addEventListener("change", (event) => take(event.target.files[0]))
  const images = (event) => !$("pick").hidden && [...(event.dataTransfer?.items ?? [])].some((item) => item.kind === "file")
  addEventListener("dragover", (event) => {
    if (!images(event)) return
    event.preventDefault()
    document.body.classList.add("dropping")
  })
  addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"))
  addEventListener("drop", (event) => {
    document.body.classList.remove("dropping")
    if (!images(event)) return
    event.preventDefault()
    take(event.dataTransfer.files[0])
  })
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"))
    if (file && !$("pick").hidden) take(file)
  })

  function take(file) {
    if (!file) return
    if (!file.type.startsWith("image/")) return onproblem("That file is no picture: choose a PNG, JPEG or WebP file.")
    if (file.size > MOST_BYTES) return onproblem("That picture is larger than 8 MB: choose a smaller one.")
    const reader = new FileReader()
    reader.onload = () => onquery({ image: reader.result })
    reader.readAsDataURL(file)
    $("file").value = ""
  }
}

// Which kinds of queries this index takes, in words that say how they work.
export function describeQueries(about) {
  const reads = new Set(about.reads), field = $("typed")
  $("pick").hidden = !reads.has("image")
  field.disabled = !reads.has("text") && !reads.has("words")
  field.placeholder = reads.has("text") ? "Type what you look for" : about.texts.length ? `Type a ${about.texts[0]}` : "Click a row to search by it"
  const words = reads.has("text") ? `The model ${about.model.name} reads your words.`
    : reads.has("words") ? `Words are compared with the ${listed(about.texts)} of each row; the row that fits best is the query.`
    : "The rows have no text: click one to search by it."
  $("how").textContent = words + (reads.has("image") ? ` The model ${about.model.name} reads a picture that you drop here.` : "")
}

// The query that is shown: its picture, or nothing for words that a model reads.
export function showAsked(item) {
  const shown = item && picture(item, 40)
  $("asked").replaceChildren(...(shown ? [shown] : []))
  $("asked").hidden = !shown
}

// Rows to search with: what the words found, or examples.
export function showChoices(items, current, onpick) {
  $("choices").replaceChildren(...items.map((item) => {
    const face = picture(item, 36)
    const button = make("button", {
      type: "button", class: face ? "choice" : "choice text", title: item.title, "aria-label": `Search by ${item.title}`,
      "aria-pressed": String(current !== null && keyOf(item.id) === keyOf(current)), onclick: () => onpick(item),
    }, face ?? make("span", { class: "title" }, item.title))
    return make("li", {}, button)
  }))
}

const listed = (names) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0])
