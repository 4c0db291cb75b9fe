//! Consistency of the docs: links have targets, and quoted messages exist in the source.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use crate::harness::root;

/// Folders whose pages are generated or not ours.
const NOT_OURS: [&str; 3] = ["target", ".git", "corpus"];

/// Maximum distance between two parts of a message in the source, in bytes.
const NEAR: usize = 600;

/// Returns all files with this extension below a folder.
fn files(folder: PathBuf, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && !NOT_OURS.iter().any(|other| name == *other) {
                folders.push(path);
            } else if path.extension().is_some_and(|own| own == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the lines of a page outside code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let anchors = headings.map(|line| {
        let kept = line.trim_start_matches('#').trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        });
        let name = kept.collect::<String>().to_lowercase();
        let before = seen.entry(name.clone()).and_modify(|n| *n += 1).or_default();
        if *before == 0 { name } else { format!("{name}-{before}") }
    });
    anchors.collect()
}

/// Returns the link targets in a line, outside code.
fn links(line: &str) -> Vec<&str> {
    line.split('`')
        .step_by(2)
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect()
}

#[test]
fn docs_links_have_existing_targets() {
    let mut checked = 0;
    for file in files(root().to_owned(), "md") {
        let page = fs::read_to_string(&file).expect("a page");
        let here = file.parent().expect("a folder");
        for link in prose(&page).flat_map(links).filter(|link| !link.contains(':')) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = if path.is_empty() { file.clone() } else { here.join(path) };
            assert!(to.exists(), "{}: {link} leads nowhere", file.display());
            if !anchor.is_empty() {
                let there = fs::read_to_string(&to).expect("a page");
                let is_there = anchors(&there).iter().any(|name| name == anchor);
                assert!(is_there, "{}: {link}: no such heading", file.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked} links");
}

#[test]
fn docs_pages_show_every_image() {
    let pages: String = files(root().to_owned(), "md")
        .into_iter()
        .map(|file| fs::read_to_string(file).expect("a page"))
        .collect();
    let docs = root().join("docs");
    for picture in files(docs.join("images"), "png") {
        let name = picture.strip_prefix(&docs).expect("a path below docs").to_string_lossy();
        assert!(pages.contains(&*name), "no page shows {name}");
    }
}

/// Returns a source in which string literals that continue on the next line are joined.
fn whole_literals(source: &str) -> String {
    let mut pieces = source.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |whole, piece| whole + piece.trim_start())
}

/// Returns true if the text contains these parts in this order, close to each other.
fn has_in_order(text: &str, parts: &[&str]) -> bool {
    let [first, others @ ..] = parts else { return true };
    text.match_indices(first).any(|(at, _)| {
        let mut rest = &text[at + first.len()..text.ceil_char_boundary((at + NEAR).min(text.len()))];
        others.iter().all(|part| match rest.split_once(part) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    })
}

#[test]
fn troubleshooting_messages_exist_in_source() {
    let sources = ["src", "crates"].into_iter().flat_map(|folder| files(root().join(folder), "rs"));
    let sources: Vec<String> = sources
        .filter(|path| {
            !path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
        })
        .map(|path| whole_literals(&fs::read_to_string(path).expect("a source")).to_lowercase())
        .collect();
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).expect("the page");
    let messages: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(messages.len() >= 30, "{messages:?}");
    for message in messages {
        let lower = message.to_lowercase();
        let parts: Vec<&str> = lower
            .split('…')
            .map(|part| part.trim().trim_end_matches('.'))
            .filter(|part| part.len() > 2)
            .collect();
        assert!(!parts.is_empty(), "{message} says nothing");
        let is_there = sources.iter().any(|source| has_in_order(source, &parts));
        assert!(is_there, "docs/troubleshooting.md quotes {message:?}, which no source contains");
    }
}

#[test]
fn each_remedy_row_names_its_test() {
    let page = fs::read_to_string(root().join("docs/findings.md")).expect("a page");
    let table =
        page.split("| evidence | finding | remedy | test |\n|---|---|---|---|\n").nth(1).expect("the table");
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 10, "{rows:?}");
    for row in rows {
        let name = row.rsplit('`').nth(1).expect("a test");
        let (module, test) = name.split_once("::").unwrap_or_else(|| panic!("{name} is not a test"));
        let folder = match module {
            "remedies" | "told" => "crates/report/src/finding_words/tests",
            "sound" | "streams" => "crates/explain/src/tests",
            _ => "tests/it",
        };
        let source =
            fs::read_to_string(root().join(folder).join(module).with_extension("rs")).expect("a module");
        assert!(source.contains(&format!("#[test]\nfn {test}() {{")), "there is no test {name}");
    }
}
