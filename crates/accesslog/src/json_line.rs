//! Log lines that are JSON objects.

use serde_json::{Map, Value};

use crate::LineError;
use crate::line_parts::is_set;

/// Fields of a line.
#[derive(Debug)]
pub(crate) struct JsonLine(Map<String, Value>);

impl JsonLine {
    /// Parses a line; `None` if it lacks the field `key` and looks like a message from the gateway about itself.
    pub(crate) fn read(line: &str, key: &'static str) -> Result<Option<Self>, LineError> {
        let fields: Map<String, Value> = serde_json::from_str(line).map_err(|_| LineError::NotJson)?;
        if fields.contains_key(key) {
            return Ok(Some(Self(fields)));
        }
        let is_own = ["level", "severity"].iter().any(|name| fields.contains_key(*name));
        if is_own { Ok(None) } else { Err(LineError::Field(key)) }
    }

    /// Returns true if the field exists, whatever its value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the value of a text field; `None` if the gateway had nothing to log there.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, LineError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| is_set(text))),
            Some(_) => Err(LineError::Field(name)),
        }
    }

    /// Returns the value of a field that is a whole number, with or without quotes.
    pub(crate) fn number<N: TryFrom<u64>>(&self, name: &'static str) -> Result<Option<N>, LineError> {
        let number = match self.0.get(name) {
            Some(Value::Number(number)) => number.as_u64(),
            _ => match self.text(name)? {
                None => return Ok(None),
                Some(text) => crate::decimal::read_number(text),
            },
        };
        number.and_then(|n| N::try_from(n).ok()).map(Some).ok_or(LineError::Field(name))
    }

    /// Returns the value of a field that is a number with a fraction.
    pub(crate) fn fraction(&self, name: &'static str) -> Result<f64, LineError> {
        self.0.get(name).and_then(Value::as_f64).ok_or(LineError::Field(name))
    }

    /// Returns true if the header `name` in the field `headers` contains the text.
    pub(crate) fn has_header(&self, headers: &str, name: &str, text: &str) -> bool {
        let values = self.0.get(headers).and_then(|headers| headers.get(name)).and_then(Value::as_array);
        values.is_some_and(|all| all.iter().filter_map(Value::as_str).any(|value| value.contains(text)))
    }
}
