// Dropped, pasted and chosen files, and the images inside dropped folders.
import { byId } from "/assets/dom.js";

const MAX_ENTRIES = 20000; // files and folders searched for images
const IMAGE = /\.(bmp|jpe?g|png|tiff?|webp)$/i;

const named = (files) => Array.from(files, (file) => ({ file, name: file.name }));

// Files, and at most `room` images of folders; entries that cannot be read are counted.
async function readDrop(transfer, room) {
  // All at once: the browser forgets a drop at the first await.
  const dropped = Array.from(transfer.items).filter((item) => item.kind === "file")
    .map((item) => ({ entry: item.webkitGetAsEntry(), file: item.getAsFile() }));
  const isFolder = ({ entry }) => Boolean(entry && entry.isDirectory);
  const folders = dropped.filter(isFolder).map(({ entry }) => entry);
  const files = named(dropped.filter((item) => !isFolder(item)).map(({ file }) => file));
  const result = { files, folders: folders.length, unreadable: 0, truncated: false };
  await collectImages(folders, result, room);
  return result;
}

async function collectImages(folders, result, room) {
  const stack = [...folders].reverse();
  for (let seen = 0; stack.length; seen += 1) {
    const entry = stack.pop();
    const relevant = entry.isDirectory || IMAGE.test(entry.name);
    if (seen >= MAX_ENTRIES || (relevant && result.files.length >= room)) {
      result.truncated = true;
      return;
    }
    try {
      if (entry.isDirectory) stack.push(...(await listFolder(entry)).reverse());
      else if (relevant) result.files.push({ file: await openFile(entry), name: entry.fullPath.slice(1) });
    } catch {
      result.unreadable += 1;
    }
  }
}

async function listFolder(folder) {
  const reader = folder.createReader();
  const readSome = () => new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
  const entries = [];
  for (let some = await readSome(); some.length; some = await readSome()) entries.push(...some);
  const visible = entries.filter((entry) => !entry.name.startsWith(".")); // hidden files are metadata of the system
  return visible.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
}

const openFile = (entry) => new Promise((resolve, reject) => { entry.file(resolve, reject); });

// The bytes of a file, or null where it cannot be read any more: a form would fail for all its files, without a reason.
export const readBytes = (file) => file.arrayBuffer().then((bytes) => new Blob([bytes]), () => null);

// `room()`: how many more images the page takes, null where it takes none now.
export function listen(room, add) {
  const drop = byId("drop");
  const hasFiles = (event) => event.dataTransfer.types.includes("Files"); // not text that is dragged into a field
  byId("choose").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", (event) => { add({ files: named(event.target.files) }); event.target.value = ""; });
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    drop.classList.toggle("over", room() !== null);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  document.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    drop.classList.remove("over");
    if (room() === null) return;
    byId("searching").textContent = "Searching for images …";
    const result = await readDrop(event.dataTransfer, room());
    byId("searching").textContent = "";
    add(result);
  });
  document.addEventListener("paste", (event) => { if (room() !== null) add({ files: named(event.clipboardData.files) }); });
}
