//! Suggestions for unknown names.

/// Minimum similarity for a suggestion, from 0 to 1.
const ALIKE: f64 = 0.6;

/// Returns the known name most similar to this one, if any is similar enough.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    alike(name, known).into_iter().next()
}

/// Returns the known names similar to this one, the most similar first.
pub fn alike<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let alike = |known: &'a str| (strsim::normalized_damerau_levenshtein(name, known), known);
    let mut alike: Vec<_> = known.into_iter().map(alike).filter(|(how, _)| *how >= ALIKE).collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0));
    alike.into_iter().map(|(_, known)| known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_only() {
        let known = ["drain", "drain-in-app", "naive-exit"];
        assert_eq!(nearest("naive-exti", known), Some("naive-exit"));
        assert_eq!(nearest("drain-in-ap", known), Some("drain-in-app"));
        assert_eq!(nearest("websocket", known), None);
        assert_eq!(
            alike("dran-in-app", ["gate", "drain-in-ap", "drain-in-app"]),
            ["drain-in-app", "drain-in-ap"]
        );
    }
}
