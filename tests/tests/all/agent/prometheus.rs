//! Metrics of the agent and of a service, scraped by a Prometheus of Debian.

use super::{LIMIT, PATIENCE};
use glass_tests::cache;
use glass_tests::emulated::packages;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

/// The program, unpacked in the cache; `None` where it cannot be had.
fn prometheus() -> Option<PathBuf> {
    let unpacked = packages::with_lists(|| {
        let packages = packages::get("prometheus", &["prometheus".to_owned()])?;
        cache::filled(&format!("prometheus-{}", packages.key), |root| packages::unpack(&packages.folder, root, &[]))
    });
    match unpacked {
        Ok(root) => Some(root.join("usr/bin/prometheus")),
        Err(error) => {
            programs::skip(&format!("Debian's prometheus cannot be had: {error:#}"));
            None
        }
    }
}

/// The value of a query, if there is one.
fn value(address: SocketAddr, query: &str) -> Option<f64> {
    let mut client = Client::connect(address).ok()?;
    client.send(format!("GET /api/v1/query?query={query} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).ok()?;
    let answer: Value = serde_json::from_str(&client.response("GET").ok()?.text()).ok()?;
    answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}

#[test]
fn prometheus_scrapes_the_agent_and_a_service() {
    within(LIMIT, || {
        let (Some(glass), Some(service)) = (programs::built("glass"), programs::built("web-server")) else { return };
        let Some(prometheus) = prometheus() else { return };
        let folder = Folder::new("prometheus").unwrap();
        let [agent_port, web_port, metrics_port, port] = [(); 4].map(|()| free_port().unwrap());
        let mut agent = Command::new(glass);
        // Other tests have VMs.
        let config = format!("folder = '{}'\nvms = ['none']\n", folder.file("kept").display());
        std::fs::write(folder.file("agent.toml"), config).unwrap();
        agent
            .args(["agent", "--listen", &format!("127.0.0.1:{agent_port}"), "--config"])
            .arg(folder.file("agent.toml"));
        let _agent = Process::spawn(&mut agent, &folder.file("agent.log")).unwrap();
        std::fs::create_dir(folder.file("site")).unwrap();
        std::fs::write(folder.file("site/a"), "text").unwrap();
        let mut web = Command::new(service);
        web.arg("--share").arg(folder.file("site")).args(["--", "--port", &web_port.to_string()]);
        web.args(["--metrics", &metrics_port.to_string()]);
        let mut web = Process::spawn(&mut web, &folder.file("web.log")).unwrap();
        web.wait_for_text("metrics on", PATIENCE, || ());
        let mut client = Client::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, web_port))).unwrap();
        for path in ["/a", "/b", "/metrics"] {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            client.response("GET").unwrap();
        }
        let config = folder.file("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: agent\n  static_configs: [{{targets: ['127.0.0.1:{agent_port}']}}]\n\
             - job_name: web\n  static_configs: [{{targets: ['127.0.0.1:{metrics_port}']}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut run = Command::new(prometheus);
        run.arg(format!("--config.file={}", config.display()));
        run.arg(format!("--storage.tsdb.path={}", folder.file("data").display()));
        run.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let server = Process::spawn(&mut run, &folder.file("prometheus.log")).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for (query, expected) in [
            ("up%7Bjob=%22agent%22%7D", 1.0),
            ("up%7Bjob=%22web%22%7D", 1.0),
            ("web_server_requests_total", 3.0),
            ("web_server_bodies_waiting", 0.0),
            ("glass_agent_failures_total", 0.0),
        ] {
            let what = || format!("{query} is {expected}: {}", server.output());
            let begun = std::time::Instant::now();
            while value(address, query) != Some(expected) {
                assert!(begun.elapsed() < PATIENCE, "{}", what());
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    });
}
