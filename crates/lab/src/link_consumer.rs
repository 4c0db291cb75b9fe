//! Consumers, which connect to pods: the keys of `latencies.link`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Consumer of endpoints. Links are keyed by consumer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LinkConsumer {
    /// `node-1`: clients on that node, whether through its Service proxy or directly. Numbers start at 1.
    Node(u32),
    /// `app=gateway`: pods with this label.
    Pods {
        /// Label key.
        label: String,
        /// Value of the label.
        value: String,
    },
}

impl LinkConsumer {
    /// Returns true if the consumer is a pod with these labels (an object, or null).
    pub(crate) fn is_pod_with(&self, labels: &Value) -> bool {
        matches!(self, Self::Pods { label, value } if labels[label] == value.as_str())
    }
}

impl TryFrom<String> for LinkConsumer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some((label, value)) =
            text.split_once('=').filter(|(label, value)| !label.is_empty() && !value.is_empty())
        {
            return Ok(Self::Pods { label: label.to_owned(), value: value.to_owned() });
        }
        let number = text.strip_prefix("node-").and_then(|number| number.parse().ok());
        number.filter(|number| *number > 0).map(Self::Node).ok_or_else(|| {
            format!("{text:?} is neither a node (such as node-1) nor a pod label (such as app=gateway)")
        })
    }
}

impl From<LinkConsumer> for String {
    fn from(consumer: LinkConsumer) -> Self {
        consumer.to_string()
    }
}

impl fmt::Display for LinkConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(number) => write!(f, "node-{number}"),
            Self::Pods { label, value } => write!(f, "{label}={value}"),
        }
    }
}
