// Elements made of text: never of markup, whatever the text holds.

export function textSpan(className, text) {
  return textElement("span", className, text);
}

export function textElement(tag, className, text) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}
