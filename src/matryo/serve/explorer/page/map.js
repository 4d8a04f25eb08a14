// The collection on a plane: points that move with the dim, on a canvas, with a pointer for mouse, touch and keys.

import { $, keyOf, make, moves, picture, plural } from "./dom.js"

const REACH = 22, MARGIN = 14, MOVE = 450

export class Map2 {
  constructor(load, onpick) {
    Object.assign(this, { load, onpick, places: null, from: null, start: 0, chosen: -1, only: -1, marks: [] })
    this.canvas = $("map")
    this.canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.point(this.near(event)))
    this.canvas.addEventListener("pointerleave", () => this.point(-1))
    this.canvas.addEventListener("click", (event) => this.click(this.near(event), event.pointerType === "touch"))
    this.canvas.addEventListener("keydown", (event) => this.press(event))
    this.canvas.addEventListener("blur", () => this.point(-1))
    new ResizeObserver(() => this.draw()).observe(this.canvas)
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw())
  }

  // `data` is the answer of the server for one dim; points that were there before glide.
  show(data) {
    const same = this.data && this.data.ids.length === data.ids.length && this.data.index === data.index
    this.from = same && moves() ? this.now() : null
    const names = this.data?.classes.join("\n")
    this.data = data
    this.places = data.x.map((x, row) => [x, data.y[row]])
    this.reach = [data.x, data.y].map((values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), .01))
    this.start = performance.now()
    this.canvas.setAttribute("aria-label", `Map of ${plural(data.ids.length, "row")} at ${data.dim} dims. ` +
      "Arrow keys move between rows, Enter searches by one.")
    $("share").textContent = `${plural(data.ids.length, "row")} at ${plural(data.dim, "dim")}, on the plane that shows most: ` +
      `${Math.round(100 * data.share)} % of their variance.`
    if (names !== data.classes.join("\n")) this.legend()
    this.draw()
  }

  now() {
    const past = this.from ? Math.min(1, (performance.now() - this.start) / MOVE) : 1
    if (past >= 1) return this.places
    const eased = 1 - (1 - past) ** 3
    return this.places.map(([x, y], row) => [this.from[row][0] + (x - this.from[row][0]) * eased, this.from[row][1] + (y - this.from[row][1]) * eased])
  }

  // Places of the page from places of the map; both axes have one scale, so that distances can be compared.
  at([x, y]) {
    const { clientWidth: wide, clientHeight: high } = this.canvas
    const scale = Math.min((wide / 2 - MARGIN) / this.reach[0], (high / 2 - MARGIN) / this.reach[1])
    return [wide / 2 + x * scale, high / 2 - y * scale]
  }

  draw() {
    if (!this.data || this.waiting) return
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null
      this.paint()
      if (this.from && performance.now() - this.start < MOVE) this.draw()
      else this.from = null
    })
  }

  paint() {
    const { canvas, data } = this, ratio = devicePixelRatio || 1, style = getComputedStyle(canvas)
    canvas.width = Math.round(canvas.clientWidth * ratio)
    canvas.height = Math.round(canvas.clientHeight * ratio)
    const pen = canvas.getContext("2d"), colours = data.classes.map((_, place) => style.getPropertyValue(`--c${place}`))
    const rest = style.getPropertyValue("--soft"), places = this.now()
    pen.scale(ratio, ratio)
    const radius = Math.max(1.8, Math.min(4, 70 / Math.sqrt(places.length)))
    places.forEach((place, row) => {
      const own = data.class[row], [x, y] = this.at(place)
      pen.globalAlpha = this.only >= 0 && own !== this.only ? .08 : own < 0 ? .35 : .75
      pen.fillStyle = own < 0 ? rest : colours[own]
      pen.beginPath()
      pen.arc(x, y, radius, 0, 7)
      pen.fill()
    })
    pen.globalAlpha = 1
    for (const mark of data.marks) this.ring(pen, this.at([mark.x, mark.y]), style, keyOf(mark.id) === this.query ? 9 : 6)
    if (this.chosen >= 0) this.ring(pen, this.at(places[this.chosen]), style, 8)
  }

  ring(pen, [x, y], style, radius) {
    for (const [width, name] of [[4, "--paper"], [2, "--ink"]]) {
      pen.lineWidth = width
      pen.strokeStyle = style.getPropertyValue(name)
      pen.beginPath()
      pen.arc(x, y, radius, 0, 7)
      pen.stroke()
    }
  }

  near(event) {
    const box = this.canvas.getBoundingClientRect()
    return this.closest([event.clientX - box.left, event.clientY - box.top], REACH)
  }

  closest([left, top], reach) {
    let best = -1, least = reach ** 2
    this.places?.forEach((place, row) => {
      const [x, y] = this.at(place), far = (x - left) ** 2 + (y - top) ** 2
      if (far < least) [best, least] = [row, far]
    })
    return best
  }

  click(row, touch) {
    if (row < 0) return
    if (touch && row !== this.chosen) this.point(row)   // the first touch says what is there
    else this.onpick({ id: this.data.ids[row], title: this.data.titles[row] })
  }

  press(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key]
    if (event.key === "Enter" && this.chosen >= 0) this.click(this.chosen)
    if (!step || !this.places) return
    event.preventDefault()
    const { clientWidth: wide, clientHeight: high } = this.canvas
    if (this.chosen < 0) return this.point(this.closest([wide / 2, high / 2], Infinity))
    const [left, top] = this.at(this.places[this.chosen])
    let best = -1, least = Infinity
    this.places.forEach((place, row) => {   // the nearest one that lies mostly in this direction
      const [x, y] = this.at(place), along = (x - left) * step[0] + (y - top) * step[1]
      const across = Math.abs((x - left) * step[1]) + Math.abs((y - top) * step[0])
      if (row !== this.chosen && along > .5 && across <= along && along + across < least) [best, least] = [row, along + across]
    })
    if (best >= 0) this.point(best)
  }

  point(row) {
    if (row === this.chosen) return
    this.chosen = row
    this.canvas.style.cursor = row < 0 ? "" : "pointer"
    this.draw()
    const room = $("pointed")
    if (row < 0 || !this.data) return room.replaceChildren()
    const title = this.data.titles[row], own = this.data.classes[this.data.class[row]]
    const words = make("span", {}, own ? `${title} · ${own}` : title)
    room.replaceChildren(words)
    clearTimeout(this.timer)
    this.timer = setTimeout(async () => {
      const item = await this.load(this.data.ids[row])
      if (row === this.chosen && item) room.replaceChildren(...[picture(item, 40), words].filter(Boolean))
    }, 60)
  }

  // Classes are buttons: one of them alone can be shown, also by those who cannot tell the colours.
  legend() {
    this.only = -1
    const draw = () => {
      $("classes").replaceChildren(...this.data.classes.map((name, place) => {
        const dot = make("span", { class: "dot", "aria-hidden": "true" })
        dot.style.background = `var(--c${place})`
        return make("li", {}, make("button", {
          type: "button", "aria-pressed": String(this.only === place),
          onclick: () => { this.only = this.only === place ? -1 : place; draw(); $("classes").children[place].firstChild.focus(); this.draw() },
        }, dot, name))
      }))
    }
    draw()
  }
}
