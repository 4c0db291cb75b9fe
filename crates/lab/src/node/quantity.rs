//! Kubernetes' quantities (`250m`, `64Mi`), as far as the downward API and limits of storage need
//! them. Pure.

/// Suffixes and what they multiply by. Longer ones come before their own beginnings.
const SUFFIXES: [(&str, f64); 14] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// The number that a quantity means.
pub(super) fn parse(text: &str) -> Option<f64> {
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)));
    let (number, factor) = suffix.unwrap_or((text, &1.0));
    number.parse::<f64>().ok().map(|number| number * factor)
}

/// A number of bytes, as Kubernetes writes one: `1026Mi`.
pub(super) fn in_binary(bytes: f64) -> String {
    let fits = |(suffix, factor): &&(&str, f64)| suffix.ends_with('i') && bytes % factor == 0.0;
    match SUFFIXES.iter().rev().find(fits).filter(|_| bytes > 0.0) {
        Some((suffix, factor)) => format!("{:.0}{suffix}", bytes / factor),
        None => format!("{bytes:.0}"),
    }
}

/// How many units of `divisor` a value is, rounded up.
pub(super) fn whole_units(value: f64, divisor: f64) -> String {
    let units = value / divisor;
    // 0.25 / 0.001 is a little more than 250.
    let nearest = units.round();
    format!("{:.0}", if (units - nearest).abs() < 1e-6 { nearest } else { units.ceil() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_rounded_up() {
        for (text, divisor, units) in [
            ("250m", "1m", "250"),
            ("250m", "1", "1"),
            ("64Mi", "1Mi", "64"),
            ("1G", "1Mi", "954"),
            ("3", "1", "3"),
        ] {
            assert_eq!(whole_units(parse(text).unwrap(), parse(divisor).unwrap()), units, "{text}/{divisor}");
        }
        assert_eq!(parse("lots"), None);
        let written = [1000.0, 1024.0, 1_075_838_976.0, 2_147_483_648.0].map(in_binary);
        assert_eq!(written, ["1000", "1Ki", "1026Mi", "2Gi"]);
    }
}
