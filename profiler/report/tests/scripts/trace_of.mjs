// The data of a trace in the file of a page.

import { readFileSync } from "node:fs";
import { TraceData } from "../../assets/trace/data.js";

export function traceOf(file) {
  const page = readFileSync(file, "utf8");
  const element = (id) => {
    const start = page.indexOf(">", page.indexOf(`id="${id}"`)) + 1;
    return page.slice(start, page.indexOf("</script>", start));
  };
  return new TraceData(element("trace-index"), () => {}, async (number) => element(`pack-${number}`));
}
