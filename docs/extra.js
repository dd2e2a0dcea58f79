/* Inline code breaks at a space, and within a long name after ( = . / or _, but never behind the hyphens of an option. */
for (const code of document.querySelectorAll("article :not(pre) > code:not(:has(*))")) {
  const most = code.closest("td, th") ? 20 : 30;
  const parts = (text, marks) => (text.length > most ? text.split(marks) : [text]);
  const words = code.textContent.split(/(?<=\s)/);
  const pieces = words.flatMap((word) => parts(word, /(?<=[(=./])(?=.{5})/)).flatMap((part) => parts(part, /(?<=_)(?=.{5})/));
  const spans = pieces.map((piece) => Object.assign(document.createElement("span"), { className: "piece", textContent: piece }));
  code.replaceChildren(...spans.flatMap((span) => [document.createElement("wbr"), span]).slice(1));
}

/* On a phone, where extra.css stacks the cells of a wide table's row, each cell names its column. */
for (const cell of document.querySelectorAll("article td")) {
  cell.dataset.column = cell.closest("table").rows[0].cells[cell.cellIndex].textContent;
}
