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
  const profiles = [];
  let shown = "[]";
  for (let index = 0; index < COUNT; index++) {
    // Until the table is another one than before, and stays the same. A key that is pressed too early does nothing.
    let last = "";
    for (let round = 0; round < 100 && (last === shown || last !== JSON.stringify(rows())); round++) {
      if (index === 0 && shown === "[]") press("3");
      last = JSON.stringify(rows());
      await pause(50);
    }
    shown = last;
    profiles.push(JSON.parse(shown));
    press("n");
  }
  const result = document.createElement("pre");
  result.id = "glass-result";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(profiles))));
  document.body.appendChild(result);
})();
