//! The token for the proxies' admin ports, used by the proxy and by its reader.

use std::env::{self, VarError};
use std::path::PathBuf;

use anyhow::Context;

use rolldrop_record::wire::AdminToken;

/// Environment variable that contains the token.
const VARIABLE: &str = "ROLLDROP_ADMIN_TOKEN";

/// Place of the token.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    /// File with the token for the proxies' admin ports; ROLLDROP_ADMIN_TOKEN can hold the token itself
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Returns the token, if the user gave one.
    pub(super) fn token(&self) -> anyhow::Result<Option<AdminToken>> {
        if let Some(path) = &self.admin_token_file {
            let read = || anyhow::Ok(std::fs::read_to_string(path)?.parse()?);
            return read()
                .map(Some)
                .with_context(|| format!("failed to read a token from {}", path.display()));
        }
        match env::var(VARIABLE) {
            Err(VarError::NotPresent) => Ok(None),
            text => {
                let read = || anyhow::Ok(text?.parse()?);
                read()
                    .map(Some)
                    .with_context(|| format!("failed to read a token from the variable {VARIABLE}"))
            }
        }
    }
}
