//! The integration tests: the real binary, real processes, real sockets.
//!
//! `harness` runs the binary, `lab` sets up clusters, `web` is the app that is measured, and `machine` says when the
//! machine was too busy for a measured figure. What a test shows beside these is its own.
//!
//! A measured run takes half a minute, so each built-in scenario is run once
//! (`runs`), and the tests look at that run's directory from all sides.

mod api;
mod bad_input;
mod beats;
mod behaviours;
mod chart;
mod churn;
mod ci;
mod cluster;
mod collection;
mod command;
mod comparison;
mod conntrack;
mod consumers;
mod controllers;
mod disruptions;
mod dns;
mod docs;
mod expectations;
mod faults;
mod faulty_api;
mod gateways;
mod giving_up;
mod guide;
mod harness;
mod hostile;
mod http2;
mod in_use;
mod ingress;
mod inject;
mod interruption;
mod kernel;
mod kube_client;
mod kubectl;
mod lab;
mod library;
mod live;
mod load;
mod load_alpn;
mod load_ends;
mod load_job;
mod load_names;
mod load_options;
mod load_tls;
mod load_unanswered;
mod looks;
mod machine;
mod main_job;
mod many_pods;
mod mutations;
mod nodes;
mod other_tools;
mod page;
mod plugin;
mod pods;
mod probes;
mod proxy;
mod proxy_admin;
mod proxy_ends;
mod recorded_runs;
mod release;
mod report_files;
mod report_size;
mod rollouts;
mod runs;
mod sample_server;
mod servers;
mod soak;
mod stale_flows;
mod strangers;
mod synthetic;
mod terminal;
mod termination;
mod tidy;
mod truth;
mod tune;
mod tuned;
mod versions;
mod web;
mod websocket;
mod who;
