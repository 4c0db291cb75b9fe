//! Kubernetes quantities (`250m`, `64Mi`). Pure.

/// Suffixes and their factors. Longer ones come before their prefixes.
const SUFFIXES: [(&str, f64); 15] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
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

/// Parses a quantity; returns `None` if it is malformed.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)));
    let (number, factor) = suffix.unwrap_or((text, &1.0));
    let number = number.parse::<f64>().ok().filter(|number| number.is_finite());
    number.map(|number| number * factor)
}

/// Formats a value in whole units of `divisor`, rounded up.
pub(crate) fn whole_units(value: f64, divisor: f64) -> String {
    let units = value / divisor;
    // 0.25 / 0.001 is a little more than 250.
    let nearest = units.round();
    format!("{:.0}", if (units - nearest).abs() < 1e-6 { nearest } else { units.ceil() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_round_up_to_multiple_of_divisor() {
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
    }

    #[test]
    fn quantity_requires_number_and_known_unit() {
        for good in ["1", "100m", "1.5", "0.5Gi", "128Mi", "1e3", "1E-3", "+2k", ".5"] {
            assert!(parse(good).is_some(), "{good}");
        }
        for bad in ["", "m", "1x", "1 Gi", "1.2.3", "Gi1", "1e", "ten"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
