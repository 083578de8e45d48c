// Entry point of the page.
const data = JSON.parse(document.getElementById("profile").textContent);
