// A checkbox for each policy: unchecked, its lines and bars are gone.
for (const box of document.querySelectorAll("input[data-policy]")) {
  const apply = () => {
    for (const part of document.querySelectorAll(`main .p${box.dataset.policy}`)) {
      part.style.display = box.checked ? "" : "none";
    }
  };
  box.addEventListener("change", apply);
  apply(); // a browser may remember what was unchecked before a reload
}
