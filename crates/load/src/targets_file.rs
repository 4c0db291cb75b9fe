//! Target files in vegeta's two formats (`vegeta attack -format http` and `-format json`).
//!
//! In the http format, a target is a request line, headers, and `@FILE` for a body; an empty line ends it. Our
//! extension is a comment, which vegeta skips: with `# weight: 3` before it, a target gets three requests for each
//! request that a target of weight 1 gets. The json format has one object per line with `method`, `url`, `header` and
//! `body` (base64), and also `weight` as our extension.

use std::collections::BTreeMap;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use rolldrop_record::Secret;
use rolldrop_record::load::LoadTarget;

/// Reason why a target file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct TargetsError {
    /// Line number, counted from 1.
    pub line: usize,
    /// Problem on this line, with its remedy.
    pub why: String,
}

/// Parses the targets in `text`. `read` reads the file that contains a body.
///
/// # Errors
/// Returns an error if the text contains no target, or an invalid one.
pub fn parse(
    text: &str,
    read: impl Fn(&str) -> io::Result<Vec<u8>>,
) -> Result<Vec<LoadTarget>, TargetsError> {
    let targets = match text.trim_start().starts_with('{') {
        true => parse_json(text)?,
        false => parse_http(text, read)?,
    };
    match targets.is_empty() {
        true => Err(TargetsError {
            line: 1,
            why: "the file has no target: add a line such as GET http://HOST/PATH".into(),
        }),
        false => Ok(targets),
    }
}

fn parse_http(
    text: &str,
    read: impl Fn(&str) -> io::Result<Vec<u8>>,
) -> Result<Vec<LoadTarget>, TargetsError> {
    let mut targets: Vec<LoadTarget> = Vec::new();
    // True while the last target may still get headers and a body.
    let mut is_open = false;
    let mut weight = 1;
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        let wrong = |why: String| TargetsError { line: number, why };
        if line.is_empty() {
            is_open = false;
        } else if let Some(comment) = line.strip_prefix('#') {
            if let Some(given) = comment.trim_start().strip_prefix("weight:") {
                weight = given.trim().parse().map_err(|_| {
                    wrong(format!(
                        "weight {:?} is not a whole number: write it as in # weight: 3",
                        given.trim()
                    ))
                })?;
            }
        } else if let Some((method, url)) = request_line(line) {
            let target = LoadTarget::new(url.trim(), url.trim());
            targets.push(LoadTarget { method: Some(method.to_owned()), weight, ..target });
            (is_open, weight) = (true, 1);
        } else {
            let target = targets.last_mut().filter(|_| is_open).ok_or_else(|| {
                // The line may be a header whose value is a secret, so it is not quoted.
                wrong("this is not a target: write METHOD URL, such as GET http://HOST/PATH".to_owned())
            })?;
            if let Some(path) = line.strip_prefix('@') {
                target.body = Some(
                    read(path).map_err(|e| wrong(format!("failed to read the body file {path:?}: {e}")))?,
                );
                is_open = false;
            } else {
                let header = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
                let (name, value) = header
                    .filter(|(name, value)| !name.is_empty() && !value.is_empty())
                    .ok_or_else(|| wrong("this is not a header: write NAME: VALUE".to_owned()))?;
                target.headers.push((name.to_owned(), value.into()));
            }
        }
    }
    Ok(targets)
}

/// Splits a request line. A method consists of capital letters; a header has a colon before the first space.
fn request_line(line: &str) -> Option<(&str, &str)> {
    let (method, url) = line.split_once(' ')?;
    (!method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase())).then_some((method, url))
}

const JSON_TARGET: &str = r#"{"method": "GET", "url": "http://HOST/PATH", "header": {"NAME": ["VALUE"]}, "body": "BASE64", "weight": 1}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonTarget {
    method: String,
    url: String,
    #[serde(default)]
    header: BTreeMap<String, Vec<Secret>>,
    #[serde(default)]
    body: String,
    #[serde(default = "one")]
    weight: u32,
}

const fn one() -> u32 {
    1
}

fn parse_json(text: &str) -> Result<Vec<LoadTarget>, TargetsError> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let target = |(line, number): (&str, usize)| {
        let wrong = |why: String| TargetsError { line: number, why };
        // The error text may quote a value, which may be a secret.
        let json: JsonTarget = serde_json::from_str(line).map_err(|e| {
            let why = if e.is_data() { "these are not the fields of a target" } else { "this is not JSON" };
            wrong(format!("{why} (column {}): write {JSON_TARGET}", e.column()))
        })?;
        let body = match json.body.as_str() {
            "" => None,
            body => {
                Some(STANDARD.decode(body).map_err(|e| wrong(format!("the body is not valid base64: {e}")))?)
            }
        };
        let headers = json.header.into_iter();
        let headers =
            headers.flat_map(|(name, values)| values.into_iter().map(move |value| (name.clone(), value)));
        Ok(LoadTarget {
            method: Some(json.method),
            headers: headers.collect(),
            body,
            weight: json.weight,
            ..LoadTarget::new(json.url.as_str(), json.url.as_str())
        })
    };
    lines.map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> io::Result<Vec<u8>> {
        if path == "b.json" { Ok(b"{}".to_vec()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    #[test]
    fn vegeta_http_format_parses_with_weights() {
        let text = "# a comment\nGET http://web/a\nX-One: 1\nx-two: a:b\n\n# weight: 3\nPOST http://web/b\n\
                    # another\nContent-Type: application/json\n@b.json\n\nHEAD http://web/c\nGET http://web/d\n";
        let targets = parse(text, read).unwrap();
        let header = |name: &str, value: &str| (name.to_owned(), value.into());
        let target =
            |method: &str, url: &str| LoadTarget { method: Some(method.into()), ..LoadTarget::new(url, url) };
        assert_eq!(
            targets,
            [
                LoadTarget {
                    headers: vec![header("X-One", "1"), header("x-two", "a:b")],
                    ..target("GET", "http://web/a")
                },
                LoadTarget {
                    headers: vec![header("Content-Type", "application/json")],
                    body: Some(b"{}".to_vec()),
                    weight: 3,
                    ..target("POST", "http://web/b")
                },
                target("HEAD", "http://web/c"),
                target("GET", "http://web/d"),
            ]
        );
    }

    #[test]
    fn vegeta_json_format_parses() {
        let text = "{\"method\":\"POST\",\"url\":\"http://web/1\",\"header\":{\"A\":[\"b\",\"c\"]},\"body\":\"Rk9P\"}\n\n\
                    {\"method\":\"GET\",\"url\":\"http://web/2\",\"weight\":2}\n";
        let targets = parse(text, read).unwrap();
        assert_eq!(targets[0].body.as_deref(), Some(&b"FOO"[..]));
        assert_eq!(targets[0].headers, [("A".into(), "b".into()), ("A".into(), "c".into())]);
        assert_eq!((targets[1].weight, targets[1].method.as_deref()), (2, Some("GET")));
    }

    #[test]
    fn target_error_names_its_line() {
        let said = |text: &str| parse(text, read).unwrap_err().to_string();
        assert!(said("").starts_with("line 1: the file has no target"));
        assert!(said("\nhttp://web/\n").starts_with("line 2: this is not a target"));
        assert!(said("GET http://web/\nnonsense\n").starts_with("line 2: this is not a header"));
        assert!(
            said("GET http://web/\n@missing\n")
                .starts_with("line 2: failed to read the body file \"missing\"")
        );
        assert!(said("# weight: heavy\nGET http://web/\n").starts_with("line 1: weight \"heavy\""));
        assert!(
            said("{\"method\":\"GET\"}")
                .starts_with("line 1: these are not the fields of a target (column 16): write {")
        );
        assert!(said("{").starts_with("line 1: this is not JSON (column 1)"));
        for secret in [
            "GET http://a/\nAuthorization hush",
            "Authorization: hush",
            "{\"method\":\"GET\",\"url\":\"http://a/\",\"header\":{\"a\":\"hush\"}}",
        ] {
            assert!(!said(secret).contains("hush"), "{}", said(secret));
        }
        assert!(said("{\"method\":\"GET\",\"url\":\"http://a/\",\"body\":\"?\"}").contains("base64"));
    }
}
