// Elements, numbers and motion. Text from the server only ever becomes text nodes.

export const $ = (id) => document.getElementById(id)

// make("li", {class: "card", onclick: f}, "text", child)
export function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "text"].includes(tag)
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (value === true) element.setAttribute(name, "")
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value)
  }
  element.append(...children.filter((child) => child !== null && child !== undefined))
  return element
}

// A picture of a row, or nothing. The server sends only data:image and, where asked to, http(s) addresses.
export function picture(item, side) {
  if (!/^(data:image\/|https?:\/\/)/.test(item.image)) return null
  return make("img", {
    src: item.image, alt: "", width: side, height: side, loading: "lazy", decoding: "async", referrerpolicy: "no-referrer",
    draggable: "false", onerror: (event) => event.target.classList.add("broken"),
  })
}

export const keyOf = (id) => JSON.stringify(id)

const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"]]

// 25600000 → "25.6 M", with three digits
export function short(value) {
  const [size, unit] = units.find(([least]) => Math.abs(value) >= least * 0.9995) ?? [1, ""]
  const scaled = value / size
  const text = scaled && Math.abs(scaled) < 1 ? String(Number(scaled.toPrecision(2))) : String(Number(scaled.toPrecision(3)))
  return unit ? `${text} ${unit}` : text
}

// A share as a percentage that says 100 % only if it is.
export function percent(share, digits = 0) {
  const value = (100 * share).toFixed(digits)
  return `${share < 1 && Number(value) === 100 ? Math.floor(1000 * share) / 10 : Number(value)} %`
}

export const count = (number) => number.toLocaleString("en")
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`

const still = matchMedia("(prefers-reduced-motion: reduce)")
export const moves = () => !still.matches

// Run `change`, then let the children of `list` glide from where they were to where they are.
export function glide(list, change) {
  const before = new Map([...list.children].map((child) => [child.dataset.key, child.getBoundingClientRect()]))
  change()
  if (!moves()) return
  for (const child of list.children) {
    const now = child.getBoundingClientRect(), was = before.get(child.dataset.key)
    if (!was) {
      child.animate([{ opacity: 0, transform: "scale(.8)" }, { opacity: 1, transform: "none" }], { duration: 260, easing: "ease-out" })
    } else if (was.left !== now.left || was.top !== now.top) {
      const from = `translate(${was.left - now.left}px, ${was.top - now.top}px)`
      child.animate([{ transform: from }, { transform: "none" }], { duration: 380, easing: "cubic-bezier(.2, .8, .2, 1)" })
    }
  }
}
