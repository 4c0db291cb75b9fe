//! Limits relative to a baseline (`worse: 10%`), and the margins that each kind of figure allows.

use super::limit_list::Limit;
use super::{Expect, Margin};

/// A limit on how much worse a figure may be than in the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Worse {
    /// Subset of the requests that the limit applies to; `None` for all.
    pub part: Option<Part>,
    /// Key of the figure, relative to `expect` or to its part, such as `latency.p99`.
    pub key: String,
    /// Kind of figure.
    pub kind: Kind,
    /// Margin by which the figure may be worse.
    pub by: Margin,
}

/// A subset of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Requests routed by one consumer, given by the consumer's or its target's name.
    Consumer(String),
    /// Requests to one target, given by its name.
    Target(String),
}

impl Part {
    /// Returns the key of the part's limits, such as `targets.web`.
    pub fn key(&self) -> String {
        match self {
            Part::Consumer(name) => format!("consumers.{name}"),
            Part::Target(name) => format!("targets.{name}"),
        }
    }
}

/// Kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Number of requests over the whole run.
    Total,
    /// Number of requests in the worst termination or group, or number of events, which a stream loses all at once.
    /// Neither is a total of independent losses.
    Most,
    /// A time.
    Time,
    /// A latency.
    Latency,
    /// A share for which larger is better.
    Share,
    /// A number for which larger is neither better nor worse.
    Neither,
}

impl Worse {
    /// Returns the full key, such as `targets.web.latency.p99`.
    pub fn name(&self) -> String {
        match &self.part {
            None => self.key.clone(),
            Some(part) => format!("{}.{}", part.key(), self.key),
        }
    }

    /// Returns the reason why this limit is invalid for the figure; `None` if it is valid.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        match (self.kind, self.by) {
            (Kind::Neither, _) => {
                Some("a larger value of this figure is neither better nor worse: use min or max")
            }
            (_, Margin::Share(_))
            | (Kind::Time | Kind::Latency, Margin::Time(_))
            | (Kind::Total | Kind::Most, Margin::Count(_)) => None,
            (Kind::Time | Kind::Latency, Margin::Count(_)) => {
                Some("this limit is on a duration: write a share such as 10%, or a duration such as 200ms")
            }
            (Kind::Total | Kind::Most, Margin::Time(_)) => {
                Some("this limit is on a number: write a share such as 10%, or a number such as 5")
            }
            (Kind::Share, _) => Some("this limit is on a share: write a share such as 1%"),
        }
    }
}

impl Expect {
    /// Returns all limits relative to a baseline; those for subsets of the requests come last.
    pub fn worse(&self) -> Vec<Worse> {
        let consumers = self.consumers.iter().map(|(name, of)| (Part::Consumer(name.clone()), of));
        let targets = self.targets.iter().map(|(name, of)| (Part::Target(name.clone()), of));
        let of_part = |(part, of): (Part, &Expect)| {
            of.worse_of_all().into_iter().map(move |worse| Worse { part: Some(part.clone()), ..worse })
        };
        self.worse_of_all().into_iter().chain(consumers.chain(targets).flat_map(of_part)).collect()
    }

    /// Returns the limits relative to a baseline that apply to all requests.
    pub(super) fn worse_of_all(&self) -> Vec<Worse> {
        let limits = self.limits_on_numbers().into_iter();
        let worse =
            |limit: Limit| limit.worse.map(|by| Worse { part: None, key: limit.key, kind: limit.kind, by });
        limits.filter_map(worse).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(json: Value) -> Result<Vec<Worse>, String> {
        let expect: Expect = serde_json::from_value(json).map_err(|error| error.to_string())?;
        expect.check().map_err(|found| format!("{}: {}", found.key, found.why))?;
        Ok(expect.worse())
    }

    #[test]
    fn worse_limit_accepts_suitable_figures() {
        let figures = json!({"p50": {"worse": "5%"}, "p99.9": {"worse": "5%"}});
        let all = json!({
            "dropped": {"worse": "10%", "perTermination": {"worse": 2}, "perGroup": {"worse": 2}},
            "appErrors": {"worse": 5, "whileEnding": {"worse": 5}}, "requests": {"ok": {"worse": "1%"}, "notSent": {"worse": 5}},
            "causes": {"overload": {"worse": 5}}, "outcomes": {"dns_error": {"worse": "10%"}},
            "streams": {"cut": {"worse": 5}, "unfinished": {"worse": 5}, "aborted": {"worse": "10%"}, "stalled": {"worse": 5},
                        "eventsLost": {"worse": "10%"}},
            "windows": {"worse": "200ms", "p50": {"worse": "10%"}, "p90": {"worse": "10%"}, "p95": {"worse": "10%"},
                        "p99": {"worse": "10%"}},
            "outage": {"worse": "1s"}, "deadSeconds": {"worse": "10%"},
            "latency": {"p99": {"worse": "20ms"}, "steady": figures, "disrupted": {"mean": {"worse": "50%"}}},
            "killed": {"worse": 1}, "failedHooks": {"worse": 1},
            "starts": {"firstRequest": {"worse": "1s"}, "dropped": {"worse": 0}}, "rollout": {"worse": "10%"},
            "consumers": {"ingress": {"dropped": {"worse": "150%"}}}, "targets": {"web": {"outage": {"worse": "1s"}}}
        });
        let names: Vec<String> = read(all).unwrap().iter().map(Worse::name).collect();
        assert_eq!(
            names.join(" "),
            "dropped dropped.perTermination dropped.perGroup appErrors appErrors.whileEnding requests.ok requests.notSent \
             causes.overload outcomes.dns_error streams.cut streams.unfinished streams.aborted streams.stalled \
             streams.eventsLost killed failedHooks windows windows.p50 windows.p90 windows.p95 windows.p99 outage deadSeconds latency.p99 \
             latency.steady.p50 latency.steady.p99_9 latency.disrupted.mean starts.firstRequest starts.dropped rollout \
             consumers.ingress.dropped targets.web.outage"
        );
    }

    #[test]
    fn worse_limit_rejects_unsuitable_figures() {
        let error = |json: Value| read(json).unwrap_err();
        let neither = "a larger value of this figure is neither better nor worse: use min or max";
        assert_eq!(
            error(json!({"terminations": {"worse": "10%"}})),
            format!("terminations.worse: {neither}")
        );
        assert_eq!(error(json!({"outcomes": {"ok": {"worse": 1}}})), format!("outcomes.ok.worse: {neither}"));
        assert!(error(json!({"accounting": {"worse": "10%"}})).contains("worse"));
        assert!(error(json!({"preStop": {"worse": "10%"}})).contains("unknown field `worse`"));
        assert!(
            error(json!({"outage": {"worse": 5}})).starts_with("outage.worse: this limit is on a duration")
        );
        let of_number = error(json!({"targets": {"web": {"dropped": {"worse": "1s"}}}}));
        assert!(of_number.starts_with("targets.web.dropped.worse: this limit is on a number"), "{of_number}");
        assert!(
            error(json!({"requests": {"ok": {"worse": 1}}}))
                .starts_with("requests.ok.worse: this limit is on a share")
        );
        for wrong in ["-1%", "10", "x%", "inf%", "1.5x"] {
            let error = error(json!({"dropped": {"worse": wrong}}));
            assert!(
                error.ends_with("expected a share such as 10%, a time such as 200ms, or a number such as 5"),
                "{error}"
            );
        }
    }
}
