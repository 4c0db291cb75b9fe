//! What somebody may have meant by a name that is unknown.

/// How alike two names are at least, from 0 to 1.
const ALIKE: f64 = 0.6;

/// The known name that is most like this one, if any is.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let alike = |known: &'a str| (strsim::normalized_damerau_levenshtein(name, known), known);
    let most = known.into_iter().map(alike).max_by(|a, b| a.0.total_cmp(&b.0));
    most.filter(|(how, _)| *how >= ALIKE).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slip_is_known_and_another_word_is_not() {
        let known = ["drain", "drain-in-app", "naive-exit"];
        assert_eq!(nearest("naive-exti", known), Some("naive-exit"));
        assert_eq!(nearest("drain-in-ap", known), Some("drain-in-app"));
        assert_eq!(nearest("websocket", known), None);
    }
}
