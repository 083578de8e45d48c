// Runs inside speedscope's released page: loads PROFILE, and puts the rows of the table "Sandwich" of each of its COUNT
// profiles, which it has sorted by self, into the document as JSON.
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const press = (key) => window.dispatchEvent(new KeyboardEvent("keypress", { key }));
const until = async (condition) => {
  for (let round = 0; round < 200 && !condition(); round++) await pause(50);
};
const rows = () =>
  [...document.querySelectorAll("table")]
    .flatMap((table) => [...table.querySelectorAll("tr")])
    .map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent))
    .filter((cells) => cells.length === 3 && cells[1].includes("%"));

(async () => {
  speedscope.loadFileFromBase64(NAME, PROFILE);
  await until(() => document.title.includes("speedscope") && document.querySelector("canvas"));
  await pause(500);
  press("3");
  const profiles = [];
  for (let index = 0; index < COUNT; index++) {
    await until(() => rows().length > 0);
    await pause(300);
    profiles.push(rows());
    press("n");
    await pause(300);
  }
  const result = document.createElement("pre");
  result.id = "glass-result";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(profiles))));
  document.body.appendChild(result);
})();
