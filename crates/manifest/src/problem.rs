//! Problems in text that is not a manifest: place, cause and remedy.

use granit_parser::ErrorKind;
use thiserror::Error;

/// Error for manifests that cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ManifestError {
    /// A template that has not been rendered.
    #[error(
        "{place}: this is a template ({text}), not a manifest: render it first, for example with helm template \
         CHART"
    )]
    Template {
        /// File and line.
        place: String,
        /// First words of the template action.
        text: String,
    },
    /// Neither YAML nor JSON.
    #[error("{place}: {why}")]
    Invalid {
        /// File and line.
        place: String,
        /// Cause and remedy.
        why: String,
    },
}

/// A problem at a position in the text.
#[derive(Debug)]
pub(super) struct Problem {
    /// Position in bytes.
    place: usize,
    why: String,
}

impl Problem {
    pub(super) fn new(place: usize, why: impl Into<String>) -> Self {
        Self { place, why: why.into() }
    }

    /// Creates a problem from a parser error at a position.
    pub(super) fn of_kind(text: &str, place: usize, kind: &ErrorKind) -> Self {
        // The parser reports the position of the value before the tab.
        let tab = text.get(place..).and_then(|rest| rest.find('\t')).filter(|_| is_tab(kind));
        Self::new(place + tab.unwrap_or(0), why(kind))
    }

    /// Converts the problem into an error for the user.
    pub(super) fn of(self, file: &str, text: &str) -> ManifestError {
        match template(text, self.place) {
            Some((line, text)) => ManifestError::Template { place: format!("{file}:{line}"), text },
            None => {
                ManifestError::Invalid { place: format!("{file}:{}", line(text, self.place)), why: self.why }
            }
        }
    }
}

/// Returns the number of the line that contains this byte, from 1.
pub(super) fn line(text: &str, place: usize) -> usize {
    let before = &text.as_bytes()[..place.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Finds the last line, up to this position, with a template action (`{{ … }}`, `{% … %}`) where YAML has a key or a
/// value.
fn template(text: &str, place: usize) -> Option<(usize, String)> {
    /// Maximum number of characters shown.
    const SHOWN: usize = 60;

    let last = line(text, place);
    let lines = text.lines().enumerate().take(last);
    lines.filter_map(|(number, line)| Some((number + 1, action(line)?.chars().take(SHOWN).collect()))).last()
}

/// Finds a template action at the start of a line, list item or key's value, or inside a plain value.
fn action(line: &str) -> Option<&str> {
    let begins = |text: &str| text.starts_with("{{") || text.starts_with("{%");
    let own = line.trim_start().trim_start_matches("- ").trim_start();
    let value = own.split_once(": ").map_or(own, |(_, value)| value.trim_start());
    let begun = [own, value].into_iter().find(|text| begins(text))?;
    let closed = begun.find("}}").or_else(|| begun.find("%}")).map_or(begun.len(), |end| end + 2);
    Some(begun[..closed].trim_end())
}

fn is_tab(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabAtBlockScalarStart
            | ErrorKind::TabInPlainScalar
    )
}

/// Explains to the user why the YAML cannot be read, and what to do.
fn why(kind: &ErrorKind) -> String {
    use ErrorKind as Kind;

    let fixed = match kind {
        Kind::UnexpectedEofFlowSequence
        | Kind::UnexpectedEofFlowMapping
        | Kind::UnexpectedEofImplicitFlowMapping => "a bracket before this is not closed: close it",
        Kind::UnclosedFlowCollection { open } => {
            return format!(
                "'{open}' is not closed: close it, or put a value that begins with '{open}' in quotes"
            );
        }
        Kind::MisplacedFlowCollectionEnd => "a closing bracket without an opening one: remove it",
        Kind::MismatchedFlowCollectionEnd { open, close } => {
            return format!("'{open}' is closed by '{close}': use the matching bracket");
        }
        Kind::ExpectedFlowMappingSeparator => "',' or '}' is missing before this: add it",
        Kind::ExpectedFlowSequenceSeparator => "',' or ']' is missing before this: add it",
        Kind::UnclosedQuotedScalar | Kind::UnexpectedEof => "a quote is not closed: close it",
        Kind::DocumentIndicatorInQuotedScalar => "'---' inside quotes: close the quote before it",
        Kind::InvalidTrailingSingleQuotedScalar | Kind::InvalidTrailingDoubleQuotedScalar => {
            "text follows the closing quote: put the whole value in quotes"
        }
        Kind::UnknownQuotedScalarEscape
        | Kind::InvalidQuotedScalarHexEscape
        | Kind::InvalidUnicodeEscape
        | Kind::InvalidLowSurrogateHexEscape
        | Kind::InvalidLowSurrogate
        | Kind::MissingLowSurrogate
        | Kind::UnpairedLowSurrogate => "YAML has no such '\\' escape: use single quotes, or '\\\\'",
        kind if is_tab(kind) => "a tab in the indentation: use spaces",
        Kind::UnexpectedCharacter { character } => {
            return format!("a value cannot begin with {character:?}: put the value in quotes");
        }
        Kind::UnknownAnchor => {
            "this alias has no anchor before it: add '&NAME' to the value that it stands for"
        }
        Kind::UndeclaredTagHandle => "undeclared tag: put a value that begins with '!' in quotes",
        Kind::MissingAnchorOrAliasName => {
            "'&' or '*' without a name: put a value that begins with it in quotes"
        }
        Kind::MappingValueNotAllowed | Kind::InvalidColonPlacement | Kind::InvalidMappingValueWhitespace => {
            "unexpected key: check the indentation, or put a value with ': ' in quotes"
        }
        Kind::BlockSequenceEntryNotAllowed
        | Kind::BlockEntryInFlowCollection
        | Kind::ExpectedBlockSequenceEntry
        | Kind::InvalidBlockEntryWhitespace => "unexpected list item ('- '): check the indentation",
        Kind::SimpleKeyExpected | Kind::InvalidSimpleKey => "':' is missing after a key: add it",
        Kind::InvalidBlockScalarHeader | Kind::ZeroBlockScalarIndent => {
            "only '+', '-' and an indentation of 1 to 9 may follow '|' or '>': remove the rest"
        }
        Kind::RecursionLimitExceeded => "collections are nested too deeply: no Kubernetes object needs that",
        Kind::UnsupportedYamlMajorVersion => "a YAML version other than 1: remove the directive",
        Kind::ExpectedBlockMappingKey
        | Kind::UnexpectedEofBlockMapping
        | Kind::UnexpectedEofBlockSequence
        | Kind::InvalidIndentation
        | Kind::InvalidBlockScalarIndent
        | Kind::InvalidQuotedScalarIndent
        | Kind::InvalidFlowScalarIndent
        | Kind::ExpectedNodeContent => {
            "this line does not fit the lines before it: check its indentation, and the quotes before it"
        }
        _ => "this is neither YAML nor JSON: check the indentation, quotes and brackets up to here",
    };
    fixed.to_owned()
}
