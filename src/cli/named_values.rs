//! Options whose values have names: the libraries' own types, without a copy of each as a clap type.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Names of an option's values, each with its help text and the value.
pub(super) type Named<T> = [(&'static str, &'static str, T)];

/// Returns a parser that accepts these names.
pub(super) fn one_of<T: Copy + Send + Sync>(values: &'static Named<T>) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(|name| find(values, &name).ok_or("unknown name"))
}

/// Returns the value with this name, in any case.
pub(super) fn find<T: Copy>(values: &Named<T>, name: &str) -> Option<T> {
    values.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)).map(|(.., value)| *value)
}
