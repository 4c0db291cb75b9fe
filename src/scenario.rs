//! YAML to a validated scenario.
