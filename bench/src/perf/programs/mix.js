// Adds, sorts and matches until it is killed.
'use strict'
function hotInner(n) { let x = 1; for (let i = 0; i < n; i++) x = (x * 31 + i) | 0; return x }
function fibonacci(n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2) }
class Table {
  constructor() { this.counts = new Map() }
  count(key) { this.counts.set(key & 1023, (this.counts.get(key & 1023) || 0) + 1) }
}
function words(text) { let n = 0; for (const word of text.split(' ')) if (/^[a-m]+$/.test(word)) n++; return n }
const table = new Table()
const text = 'abc xyz klm '.repeat(500)
let sum = 0
for (;;) {
  sum ^= hotInner(300000) ^ fibonacci(18) ^ words(text)
  const values = []
  for (let i = 0; i < 3000; i++) { values.push((i * 7919) % 4099); table.count(i * 31) }
  values.sort((a, b) => a - b)
  sum ^= values[5]
}
