//! Makes untrusted text safe to display.
//!
//! Names, messages and headers come from an API server and from users' apps. Control characters in such text could
//! control the reader's terminal (CVE-2021-25743 in kubectl), and bidirectional characters could reorder words. This
//! module makes these characters visible. In a CI log, an untrusted line could also act as a command, such as GitHub's
//! `::error::`. Every output uses one of these functions: reports use [`values`], standard error and logs use
//! [`message`].

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns true if a character has an effect instead of a visible form: C0, DEL, C1, line separators, and characters
/// that change the writing direction (Unicode UAX 9).
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn without(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown.into()
}

/// Formats text on one line: an escape sequence appears as `\u{1b}[31m`, a newline as `\u{a}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    without_commands(without(text, acts))
}

/// Formats multi-line text; tabs are kept.
pub fn lines(text: &str) -> Cow<'_, str> {
    without(text, |c| acts(c) && c != '\n' && c != '\t')
}

/// Formats multi-line text for output that may end up in a CI log.
pub fn message(text: &str) -> Cow<'_, str> {
    without_commands(lines(text))
}

/// Prefixes of commands that may appear anywhere in a line, for GitHub and Azure, for Azure alone, and for TeamCity.
const COMMANDS: [&str; 3] = ["##[", "##vso[", "##teamcity["];

/// Escapes the first character of each CI command so that no line acts as a command.
fn without_commands(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_command = |line: &str| {
        let line = line.trim_start().strip_prefix("::");
        line.is_some_and(|rest| rest.contains("::"))
    };
    if !text.lines().any(is_command) && !COMMANDS.iter().any(|command| text.contains(command)) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for line in text.split_inclusive('\n') {
        match is_command(line) {
            true => shown.push_str(&line.replacen(':', "\\u{3a}", 1)),
            false => shown.push_str(line),
        }
    }
    for command in COMMANDS {
        shown = shown.replace(command, &command.replacen('#', "\\u{23}", 1));
    }
    shown.into()
}

/// Hides the user name and password in a URL, or in text meant to be a URL.
pub fn url(text: &str) -> Cow<'_, str> {
    let begin = text.find("://").map_or(0, |at| at + "://".len());
    let end = text[begin..].find(['/', '?', '#']).map_or(text.len(), |at| begin + at);
    match text[begin..end].rfind('@') {
        Some(at) => format!("{}***{}", &text[..begin], &text[begin + at..]).into(),
        None => text.into(),
    }
}

/// Formats multi-line text for a terminal with colours: colour sequences (SGR) are kept.
pub fn coloured_lines(text: &str) -> Cow<'_, str> {
    let is_colour = |rest: &str| {
        let rest = rest.strip_prefix("\u{1b}[")?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
        rest[end..].starts_with('m').then_some("\u{1b}[".len() + end + 1)
    };
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, after) = rest.split_at(at);
        shown.push_str(&lines(before));
        let kept = is_colour(after);
        let length = kept.unwrap_or(1);
        shown.push_str(&if kept.is_some() { after[..length].into() } else { lines(&after[..length]) });
        rest = &after[length..];
    }
    if shown.is_empty() {
        return lines(rest);
    }
    shown.push_str(&lines(rest));
    shown.into()
}

/// Returns the value with each of its strings on one line.
///
/// # Panics
///
/// Panics only if the serialized form of the value cannot be deserialized.
pub fn values<T: Clone + Serialize + DeserializeOwned>(value: &T) -> Cow<'_, T> {
    let mut plain = serde_json::to_value(value).expect("plain data with names as keys");
    if !clean(&mut plain) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(serde_json::from_value(plain).expect("serialized data can be deserialized"))
}

/// Cleans all strings in a value; returns true if any of them changed.
fn clean(value: &mut Value) -> bool {
    match value {
        Value::String(text) => match one_line(text) {
            Cow::Borrowed(_) => false,
            Cow::Owned(shown) => {
                *text = shown;
                true
            }
        },
        Value::Array(items) => items.iter_mut().fold(false, |changed, item| clean(item) | changed),
        Value::Object(map) => {
            let is_clean = map.keys().all(|key| matches!(one_line(key), Cow::Borrowed(_)));
            if !is_clean {
                let entries = std::mem::take(map).into_iter();
                *map = entries.map(|(key, value)| (one_line(&key).into_owned(), value)).collect();
            }
            map.values_mut().fold(!is_clean, |changed, item| clean(item) | changed)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const HOSTILE: &str = "a\u{1b}[31mb\u{9b}1mc\u{7f}d\u{202e}e\u{2066}f\u{200f}g\r\nh\ti\u{7}\u{2028}";

    #[test]
    fn text_escapes_control_characters() {
        let shown = r"a\u{1b}[31mb\u{9b}1mc\u{7f}d\u{202e}e\u{2066}f\u{200f}g\u{d}\u{a}h\u{9}i\u{7}\u{2028}";
        assert_eq!(one_line(HOSTILE), shown);
        assert_eq!(lines("a\n\tb\r\u{1b}"), "a\n\tb\\u{d}\\u{1b}");
        for plain in ["", "größer als 3 µs – „so“", "日本語", "e\u{301}", "👩‍👩‍👧"] {
            assert!(matches!(one_line(plain), Cow::Borrowed(_)), "{plain}");
        }
    }

    #[test]
    fn messages_escape_ci_commands() {
        let foreign = "denied\n::error title=x::y\n  ::add-mask::a\nsee ##[error]b ##vso[c] ##teamcity[d]";
        let shown = r"denied
\u{3a}:error title=x::y
  \u{3a}:add-mask::a
see \u{23}#[error]b \u{23}#vso[c] \u{23}#teamcity[d]";
        assert_eq!(message(foreign), shown);
        assert_eq!(one_line("::error::x"), r"\u{3a}:error::x");
        for plain in ["::1", "[::1]:80", "::ffff:10.0.0.1", "a::b::c", "## title"] {
            assert!(matches!(message(plain), Cow::Borrowed(_)), "{plain}");
        }
    }

    #[test]
    fn url_masks_credentials() {
        for (given, shown) in [
            ("http://user:hush@host/a@b", "http://***@host/a@b"),
            ("user:hu@sh@host", "***@host"),
            ("http://hush@host?a=b@c", "http://***@host?a=b@c"),
            ("http://host/@x", "http://host/@x"),
            ("host:80", "host:80"),
        ] {
            assert_eq!(url(given), shown);
        }
    }

    #[test]
    fn coloured_lines_keep_only_colours() {
        let coloured = "\u{1b}[1;31mlost\u{1b}[0m\n";
        assert_eq!(coloured_lines(coloured), coloured);
        assert_eq!(
            coloured_lines("a\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}"),
            r"a\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}"
        );
        assert_eq!(coloured_lines("a\u{202e}\u{1b}[0mb\u{9b}"), "a\\u{202e}\u{1b}[0mb\\u{9b}");
    }

    #[test]
    fn values_escape_nested_strings() {
        let value = BTreeMap::from([("a\u{1b}", vec!["x", "y\u{7}"])]);
        let value: BTreeMap<String, Vec<String>> = value
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.into_iter().map(str::to_owned).collect()))
            .collect();
        let shown = values(&value).into_owned();
        assert_eq!(
            shown,
            BTreeMap::from([(r"a\u{1b}".to_owned(), vec!["x".to_owned(), r"y\u{7}".to_owned()])])
        );
        assert!(matches!(values(&shown), Cow::Borrowed(_)));
    }
}
