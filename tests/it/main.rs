//! The integration tests: the real binary, real processes, real sockets.
//!
//! A measured run takes half a minute, so each built-in scenario is run once
//! (`runs`), and the tests look at that run's directory from all sides.

mod api;
mod bad_input;
mod churn;
mod cluster;
mod command;
mod controllers;
mod dns;
mod harness;
mod hostile;
mod ingress;
mod interruption;
mod kernel;
mod kube_client;
mod kubectl;
mod load;
mod main_job;
mod nodes;
mod pods;
mod probes;
mod runs;
mod stale_flows;
mod termination;
mod tidy;
mod truth;
