//! Reads a Kubernetes API server's responses: [`guard`] checks that they match the requests, [`Listed`] reads lists,
//! [`pods`] contains pods with only the fields that are used, and [`warnings`] collects the server's warnings.
//!
//! A cluster may have tens of thousands of objects, and all of their text passes through here. This crate therefore has
//! its own optimisation settings (`[profile.release]`), and the code that reads pods is not generic so that it is
//! compiled in this crate.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{DynamicObject, ObjectList};
use serde::de::DeserializeOwned;

pub mod guard;
pub mod pods;
pub mod warnings;

/// Object that can be read from lists.
pub trait Listed: Clone + DeserializeOwned {
    /// Reads a page of a list.
    ///
    /// # Errors
    /// Fails if the text is not a list of such objects.
    fn page(text: &str) -> serde_json::Result<ObjectList<Self>> {
        serde_json::from_str(text)
    }
}

macro_rules! listed {
    ($($kind:ty),*) => { $(impl Listed for $kind {})* };
}

listed!(
    DaemonSet,
    Deployment,
    DynamicObject,
    EndpointSlice,
    Event,
    Ingress,
    Node,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
    Service,
    StatefulSet
);
