//! `--assume-service-proxy`, which `rolldrop run` and `rolldrop report` share.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::headings::CLUSTER;
use rolldrop_record::service_proxy::ServiceProxy;

/// The user's statements about the cluster.
#[derive(Debug, clap::Args)]
pub(super) struct AssumeArgs {
    /// The implementation of Services, if the run cannot see it: upper bounds that rest on its balancing are then reported,
    /// and called assumed.
    ///
    /// It is an error if the cluster shows something else.
    #[arg(long, value_name = "MODE", value_parser = parser(), help_heading = CLUSTER)]
    assume_service_proxy: Option<ServiceProxy>,
}

impl AssumeArgs {
    /// Returns the Service implementation that the user stated, if any.
    pub(super) fn service_proxy(&self) -> Option<&ServiceProxy> {
        self.assume_service_proxy.as_ref()
    }
}

fn parser() -> impl TypedValueParser<Value = ServiceProxy> {
    PossibleValuesParser::new(ServiceProxy::STATED).map(|name| ServiceProxy::from(name.as_str()))
}
