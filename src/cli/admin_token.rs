//! The token for the proxies' admin ports, used by the proxy and by its reader.

use std::env::{self, VarError};
use std::path::PathBuf;

use anyhow::Context;

use rolldrop_record::wire::AdminToken;

/// Environment variable that contains the token.
const VARIABLE: &str = "ROLLDROP_ADMIN_TOKEN";

/// Source of the token.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    /// File with the token for the proxies' admin ports; ROLLDROP_ADMIN_TOKEN can hold the token itself
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Returns the token, if the user gave one.
    pub(super) fn token(&self) -> anyhow::Result<Option<AdminToken>> {
        let (from, text) = match (&self.admin_token_file, env::var(VARIABLE)) {
            (Some(path), _) => {
                (path.display().to_string(), std::fs::read_to_string(path).map_err(anyhow::Error::from))
            }
            (None, Err(VarError::NotPresent)) => return Ok(None),
            (None, text) => (format!("the variable {VARIABLE}"), text.map_err(anyhow::Error::from)),
        };
        let token = text.and_then(|text| Ok(text.parse()?));
        token.map(Some).with_context(|| format!("failed to read a token from {from}"))
    }
}
