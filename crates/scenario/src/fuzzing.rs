//! Fuzz targets for the scenario parsers.

use std::path::Path;

use serde_json::Value;

rolldrop_testing::targets! {
    scenario: super::read_scenario,
}

fn read_scenario(bytes: &[u8]) {
    // This is not a directory, so no manifest file can be read.
    let nowhere = Path::new("/dev/null");
    let _ = crate::parse::<Value>(&String::from_utf8_lossy(bytes), "scenario.yaml", nowhere, &[]);
}
