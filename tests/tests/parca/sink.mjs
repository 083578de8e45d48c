// An engine made of Parca's own generated code: it prints the profile of each request to write, in Base64, and the request's labels. Its packages are
// in the folder that is given.
import { createServer } from "node:http";
import { register } from "node:module";
import { pathToFileURL } from "node:url";

// The package is written for bundlers: its files are modules, and import each other without the end of their names.
const hooks = `
export const resolve = (name, context, next) => next(name, context).catch(() => next(name + ".js", context));
export const load = (url, context, next) =>
  next(url, url.includes("/@parca/client/") ? { ...context, format: "module" } : context);
`;
register("data:text/javascript," + encodeURIComponent(hooks));
const code = `${process.argv[2]}/@parca/client/dist/parca/profilestore/v1alpha1/profilestore.js`;
const { WriteRawRequest } = await import(pathToFileURL(code));

const server = createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  try {
    if (request.method !== "POST" || request.url !== "/profiles/writeraw") throw new Error(request.url);
    const { series } = WriteRawRequest.fromJsonString(Buffer.concat(pieces).toString());
    for (const { labels, samples } of series) {
      const names = labels.labels.map(({ name, value }) => `${name}=${value}`).join(",");
      for (const { rawProfile } of samples) console.log("parca", Buffer.from(rawProfile).toString("base64"), names);
    }
    response.end("{}");
  } catch (error) {
    response.writeHead(400).end(String(error));
  }
});
server.listen(0, "127.0.0.1", () => console.log("listening", `127.0.0.1:${server.address().port}`));
