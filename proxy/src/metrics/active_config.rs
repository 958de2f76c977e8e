//! What the configuration in force says of each route. Made anew with each look, so that nothing is
//! left of a route or a mode that is in force no more.

use fencepost_config::Config;
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

pub(super) fn info(config: &Config) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let modes =
        super::gauges("fencepost_route_info", "The mode of each route.", &["route", "mode"])?;
    let max_ages = GaugeVec::new(
        Opts::new("fencepost_max_age_seconds", "The oldest news of a source that admit a request."),
        &["route", "source"],
    )?;
    for route in config.routes.iter() {
        modes.with_label_values(&[route.name.as_str(), route.mode.name()]).set(1);
        if let Some(lock) = route.mode.lock() {
            let source = config.sources[lock.source].name.as_str();
            max_ages
                .with_label_values(&[route.name.as_str(), source])
                .set(route.max_age.as_secs_f64());
        }
    }
    let registry = Registry::new();
    registry.register(Box::new(modes))?;
    registry.register(Box::new(max_ages))?;
    Ok(registry.gather())
}
