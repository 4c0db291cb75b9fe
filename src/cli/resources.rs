//! `--load-resources`: resource quantities by name.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Resource quantities of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resources(BTreeMap<String, String>);

impl FromStr for Resources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |pair: &str| {
            let (name, amount) =
                pair.split_once('=').filter(|(name, amount)| !name.is_empty() && !amount.is_empty())?;
            Some((name.to_owned(), amount.to_owned()))
        };
        let all: Option<_> = text.split(',').map(one).collect();
        all.map(Self).ok_or_else(|| "expected amounts, such as cpu=1,memory=256Mi".to_owned())
    }
}

impl Resources {
    /// Formats the resources as an override of a scenario's value.
    pub(super) fn as_override(&self) -> String {
        format!("load.job.resources={}", serde_json::json!(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_amounts_by_name() {
        let resources: Resources = "cpu=1,memory=256Mi".parse().unwrap();
        assert_eq!(resources.as_override(), r#"load.job.resources={"cpu":"1","memory":"256Mi"}"#);
        for wrong in ["", "cpu", "cpu=", "=1", "cpu=1,"] {
            assert!(wrong.parse::<Resources>().is_err(), "{wrong}");
        }
    }
}
