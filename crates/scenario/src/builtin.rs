//! Built-in scenarios, compiled into the program.

use crate::nearest::nearest;

/// A built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Name on the command line.
    pub name: &'static str,
    /// Contents of `scenarios/NAME.yaml`.
    pub yaml: &'static str,
}

/// Scenario that `rolldrop run` uses if none is named.
pub const DEFAULT: &str = "naive-exit";
/// Scenario that `rolldrop tune` uses without arguments.
pub const ROLLOUT: &str = "naive-rollout";

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// Every built-in scenario, grouped by theme, the simplest first.
        pub const BUILTIN: &[Builtin] = &[
            $(Builtin { name: $name, yaml: include_str!(concat!("../../../scenarios/", $name, ".yaml")) }),*
        ];
    };
}

builtin![
    // Ways to lose requests, and ways to avoid it
    "naive-exit",
    "no-sidecar",
    "prestop-sleep",
    "drain-in-app",
    "killed-in-flight",
    "idle-close",
    "idle-timeout",
    "keep-alive",
    "long-requests",
    "http2",
    "websocket",
    "streams-cut",
    "streams-finished",
    "stale-flows",
    "consumers",
    "gateway-rollout",
    "gateway-tuned",
    "load-balancer",
    // Hooks, signals and grace periods
    "lifecycle-hooks",
    "prestop-over-grace",
    "shutdown-over-grace",
    "sigterm-ignored",
    "exit-codes",
    "signals",
    "stop-signal",
    "delete-grace-period",
    "force-delete",
    "agent-restart",
    // What the API shows
    "deletion-timeline",
    "terminating-pod",
    "terminating-endpoint",
    "api-access",
    // Pod startup
    "creation-timeline",
    "slow-start",
    "no-readiness-probe",
    "label-removed",
    // Pod termination
    "naive-rollout",
    "rolling-update",
    "max-unavailable-0",
    "all-at-once",
    "min-ready-seconds",
    "stateful-set",
    "daemon-set",
    "broken-probe",
    "scale-down",
    "drain",
    "node-shutdown",
    "crash",
    // A gate
    "gate",
];

/// Returns the most similar name, phrased for an error message.
pub(super) fn like(name: &str) -> String {
    let nearest = nearest(name, BUILTIN.iter().map(|builtin| builtin.name));
    nearest.map_or_else(String::new, |nearest| format!(", such as {nearest}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn every_scenario_file_is_built_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: BTreeSet<_> = files.map(|path| path.file_stem().unwrap().to_owned()).collect();
        assert_eq!(files, BUILTIN.iter().map(|builtin| builtin.name.into()).collect());
    }

    #[test]
    fn scenario_headers_have_five_lines() {
        let begins = ["What happens: ", "What one sees: ", "Why: ", "Remedy: ", "Source: docs/"];
        for Builtin { name, yaml } in BUILTIN {
            let header: Vec<&str> = yaml.lines().map_while(|line| line.strip_prefix("# ")).collect();
            assert_eq!(header.len(), begins.len(), "{name}");
            for (line, begin) in header.iter().zip(begins) {
                assert!(line.starts_with(begin) && line.len() <= 120, "{name}: {line}");
            }
        }
    }
}
