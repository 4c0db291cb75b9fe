//! Explanations of names, taken from the docs: table rows, and the paragraphs that mention a name. The docs' own files
//! are compiled in, so there is only one text to maintain.

/// A page in the docs.
#[derive(Debug)]
pub struct DocsPage {
    /// Path in the repository.
    pub path: &'static str,
    text: &'static str,
}

macro_rules! pages {
    ($($path:literal),* $(,)?) => {
        &[$(DocsPage { path: $path, text: include_str!(concat!("../../../", $path)) }),*]
    };
}

/// Pages that explain names.
const PAGES: &[DocsPage] = pages!["docs/outcomes.md", "docs/expect.md", "docs/findings.md"];

/// Kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// An outcome of a request.
    Outcome,
    /// A cause of dropped requests.
    Cause,
    /// A check of a gate.
    Check,
    /// A stage of a pod's termination or start.
    Stage,
    /// A finding of a report.
    Finding,
}

impl NameKind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: &'static [Self] = &[Self::Outcome, Self::Cause, Self::Check, Self::Stage, Self::Finding];

    /// Returns the kind of a table's rows, according to the heading of the first column.
    fn of_table(first: &str) -> Option<Self> {
        match first {
            "outcome" => Some(Self::Outcome),
            "cause" => Some(Self::Cause),
            "key" | "check" => Some(Self::Check),
            "stage" => Some(Self::Stage),
            "finding" => Some(Self::Finding),
            _ => None,
        }
    }

    /// Returns the singular description of the kind.
    pub fn one(self) -> &'static str {
        match self {
            Self::Outcome => "request outcome",
            Self::Cause => "cause of dropped requests",
            Self::Check => "gate check",
            Self::Stage => "stage of a pod's termination or start",
            Self::Finding => "report finding",
        }
    }

    /// Returns the heading for a list of this kind.
    pub fn all(self) -> &'static str {
        match self {
            Self::Outcome => "Outcomes: what happened to a request on the wire",
            Self::Cause => "Causes: why a request was dropped",
            Self::Check => "Checks: limits that you can set (expect), and limits that every gate checks",
            Self::Stage => "Stages: steps in a pod's termination or start",
            Self::Finding => "Findings: notable facts in a report",
        }
    }
}

/// A table row.
#[derive(Debug)]
pub struct DocsEntry {
    /// Kind of the names.
    pub kind: NameKind,
    /// Names that the row explains; most rows have one.
    pub names: Vec<&'static str>,
    /// Other cells with content, each with its column heading.
    pub cells: Vec<(&'static str, String)>,
    /// Page with the table.
    pub page: &'static DocsPage,
}

impl DocsEntry {
    /// Returns the paragraphs and list items on the same page that mention one of the names.
    pub fn mentions(&self) -> Vec<String> {
        let is_mentioned =
            |block: &String| self.names.iter().any(|name| block.contains(&format!("`{name}`")));
        blocks(self.page.text).into_iter().filter(is_mentioned).map(|block| plain(&block)).collect()
    }
}

/// Returns every row that explains a name, in the order of the docs.
pub fn entries() -> Vec<DocsEntry> {
    let mut entries = Vec::new();
    for page in PAGES {
        let mut header: Option<Vec<&str>> = None;
        for line in page.text.lines() {
            let cells = cells(line);
            match (&header, cells.first()) {
                (_, None) => header = None,
                (None, Some(_)) => header = Some(cells),
                (Some(_), Some(first)) if first.starts_with("---") => {}
                (Some(header), Some(_)) => entries.extend(entry(header, &cells, page)),
            }
        }
    }
    entries
}

/// Parses a table row; `None` if the table does not explain names.
fn entry(header: &[&'static str], cells: &[&'static str], page: &'static DocsPage) -> Option<DocsEntry> {
    let kind = NameKind::of_table(header.first()?)?;
    let first = cells.first()?;
    let names = match first.contains('`') {
        true => first.split('`').skip(1).step_by(2).collect(),
        false => vec![*first],
    };
    let others =
        header.iter().zip(cells).skip(1).filter(|(_, cell)| !matches!(**cell, "" | "–" | "as above"));
    let cells = others.map(|(heading, cell)| (*heading, plain(cell))).collect();
    Some(DocsEntry { kind, names, cells, page })
}

/// Returns the cells in a table line; none for any other line.
fn cells(line: &str) -> Vec<&str> {
    let row = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    row.into_iter().flat_map(|row| row.split('|')).map(str::trim).collect()
}

/// Returns the paragraphs and list items on a page, each as one line. Omits test names, and paragraphs that end with a
/// colon, which are meaningless without the text that follows.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut is_code = false;
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let item = line.strip_prefix("- ");
        let is_text = !(is_code || is_fence || line.starts_with(['#', '|']));
        if !is_text || line.is_empty() || item.is_some() {
            blocks.push(String::new());
        }
        if let (true, Some(block)) = (is_text, blocks.last_mut()) {
            let space = if block.is_empty() { "" } else { " " };
            block.push_str(&format!("{space}{}", item.unwrap_or(line).trim()));
        }
    }
    blocks.retain(|block| !(block.is_empty() || block.ends_with(':') || block.starts_with("Tests: ")));
    blocks
}

/// Converts Markdown to plain text; a link becomes its text.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        let parts = link.split_once("](").and_then(|(label, url)| Some((label, url.split_once(')')?.1)));
        match parts.filter(|(label, _)| !label.contains(['[', ']'])) {
            Some((label, after)) => {
                text.push_str(label);
                rest = after;
            }
            None => {
                text.push('[');
                rest = link;
            }
        }
    }
    text.push_str(rest);
    text.replace("**", "").replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_becomes_plain_text() {
        let of = "**Shares** hold [for `runs`](a.md#b) like [this](c.md); `[{a: 1}]` and [one] stay";
        assert_eq!(plain(of), "Shares hold for runs like this; [{a: 1}] and [one] stay");
    }

    #[test]
    fn blocks_are_paragraphs_and_items() {
        let text = "# Title\nOne\ntwo.\n\nIntroduces:\n\n```yaml\na: `b`\n\nc\n```\n- an item\n  of two lines\n- another\n\n\
                    | a |\n|---|\n\nTests: `x`.\nEnd.\n";
        assert_eq!(blocks(text), ["One two.", "an item of two lines", "another"]);
    }
}
