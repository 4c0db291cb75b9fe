//! `--assume-service-proxy`, which `rolldrop run` and `rolldrop report` share.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::headings::CLUSTER;
use rolldrop_record::service_proxy::ServiceProxy;

/// Facts about the cluster that the user states.
#[derive(Debug, clap::Args)]
pub(super) struct AssumeArgs {
    /// Implementation of Services, if the run cannot detect it. Upper bounds that depend on its balancing are then
    /// reported as assumed.
    ///
    /// The run fails if the cluster shows a different implementation.
    #[arg(long = "assume-service-proxy", value_name = "MODE", value_parser = parser(), help_heading = CLUSTER)]
    pub(super) service_proxy: Option<ServiceProxy>,
}

fn parser() -> impl TypedValueParser<Value = ServiceProxy> {
    PossibleValuesParser::new(ServiceProxy::STATED).map(|name| ServiceProxy::from(name.as_str()))
}
