//! What a run makes of its scenario's manifests: the sidecar, where it is asked for, and the image
//! that a cluster can pull.

use anyhow::Context;
use serde_json::Value;

use super::admin_secret::AdminSecret;
use crate::cli::admin_token;
use crate::inject::{self, InjectError};
use crate::record::wire::AdminToken;
use crate::scenario::Scenario;

/// Adds the sidecar, if the scenario asks for it, and answers where its token is. Without a token
/// there is one from now on.
pub(super) fn inject_sidecar(
    scenario: &mut Scenario,
    token: &mut Option<AdminToken>,
) -> anyhow::Result<Option<AdminSecret>> {
    if !scenario.inject_sidecar {
        return Ok(None);
    }
    let secret = AdminSecret::new(token.get_or_insert_with(admin_token::random).clone());
    // By number, as every version that has native sidecars takes it.
    let options = inject::Options {
        image: "rolldrop".into(),
        port: None,
        kubernetes: inject::KubernetesVersion::NATIVE_SIDECARS,
        admin_token: Some(secret.key.clone()),
    };
    match inject::inject_into(&mut scenario.manifests, &options) {
        // Then it goes beside the pods that are there.
        Err(InjectError::NoWorkload) => {}
        injected => drop(injected.context("spec.sidecar.inject")?),
    }
    Ok(Some(secret))
}

/// Puts `image` where a container's image is `rolldrop`, in any object with a pod template, and where the
/// sidecar's is kept.
pub(super) fn replace_image(object: &mut Value, image: &str) {
    match object {
        Value::Object(map) => {
            for (key, value) in map {
                if (key == "image" || key == inject::SIDECAR) && value == "rolldrop" {
                    *value = image.into();
                } else {
                    replace_image(value, image);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_image(item, image)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_tools_own_image_is_replaced() {
        let mut pod =
            json!({"spec": {"containers": [{"image": "rolldrop"}, {"image": "nginx"}], "image": 1}});
        replace_image(&mut pod, "example.org/rolldrop:1");
        let expected = json!({"spec": {
            "containers": [{"image": "example.org/rolldrop:1"}, {"image": "nginx"}], "image": 1
        }});
        assert_eq!(pod, expected);
    }
}
