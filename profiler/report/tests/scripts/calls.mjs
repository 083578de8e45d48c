// Prints all calls of functions in a page, each as start in seconds, function and duration: `node calls.mjs PAGE.html`.

import { formatDuration } from "../../assets/shared/format.js";
import { traceOf } from "./trace_of.mjs";

const data = traceOf(process.argv[2]);
const calls = [];
for (const track of data.tracks) {
  if (data.types[track.kind].label !== "call" || data.isCopy(track)) continue;
  for (const place of track.levels[0].pieces) {
    const { count, start, end, name } = await data.fetch(track, track.levels[0], place);
    for (let index = 0; index < count; index += 1) {
      calls.push([((data.startNs + start[index]) / 1e9).toFixed(6), data.names[name[index]], formatDuration(end[index] - start[index])]);
    }
  }
}
console.log(JSON.stringify(calls));
