// The switcher of versions. The sites of several versions stand beside each other, and versions.json above them
// lists their folders. A site that stands alone, or is opened as a file, has no such list and shows no switcher.
(async () => {
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
  if (!root.protocol.startsWith("http")) return;
  let versions;
  try {
    const response = await fetch(new URL("../versions.json", root));
    if (!response.ok) return;
    versions = await response.json();
  } catch {
    return;
  }
  const own = root.pathname.split("/").filter(Boolean).pop();
  if (!versions.some((one) => one.folder === own)) return;
  const select = document.createElement("select");
  select.className = "version-switcher";
  select.setAttribute("aria-label", "Version of the documentation");
  for (const one of versions) {
    select.add(new Option(one.title, one.folder, false, one.folder === own));
  }
  select.addEventListener("change", async () => {
    const page = location.href.slice(root.href.length).split("#")[0];
    const other = new URL(`../${select.value}/`, root);
    const same = new URL(page, other);
    // A page that the other version does not have leads to its first page.
    const found = await fetch(same, { method: "HEAD" }).then((response) => response.ok, () => false);
    location.href = found ? same : new URL("index.html", other);
  });
  document.querySelector(".sidebar-brand")?.after(select);
})();
