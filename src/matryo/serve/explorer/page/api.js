// Requests to this server and no other. An API key is asked for when the server wants one, and kept in memory only.

import { $ } from "./dom.js"

let key = "", asking = null

export class Refused extends Error {
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

export const get = (path) => send(path)
export const post = (path, body) => send(path, body)
export const one = (index, part) => `v1/indexes/${encodeURIComponent(index)}/${part}`

async function send(path, body) {
  for (;;) {
    const used = key
    const headers = { ...(used && { authorization: `Bearer ${used}` }), ...(body && { "content-type": "application/json" }) }
    const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), credentials: "omit" })
    if (answer.status === 401) {
      if (used === key) await ask(used !== "")
      continue
    }
    const content = await answer.json().catch(() => ({}))
    if (answer.ok) return content
    throw new Refused(answer.status, content.error?.message ?? `the server answered ${answer.status}`)
  }
}

// One dialog for all requests that wait.
function ask(again) {
  asking ??= new Promise((resolve) => {
    const door = $("door"), input = $("key")
    $("asks").textContent = again ? "That key is wrong. Try another one." : "This server needs an API key. The page keeps it until it is closed."
    input.value = ""
    door.addEventListener("close", () => {
      key = input.value.trim()
      input.value = ""
      asking = null
      resolve()
    }, { once: true })
    door.showModal()
  })
  return asking
}
