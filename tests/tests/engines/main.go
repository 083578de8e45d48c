// Engines made of their own projects' code: Pyroscope's, and the collector's of OpenTelemetry. They print what they decode of each request.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"connectrpc.com/connect"
	googlev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
)

type sink struct{}

func (sink) Push(_ context.Context, request *connect.Request[pushv1.PushRequest]) (*connect.Response[pushv1.PushResponse], error) {
	for _, series := range request.Msg.Series {
		for _, sample := range series.Samples {
			raw, err := unzip(bytes.NewReader(sample.RawProfile))
			if err != nil {
				return nil, err
			}
			var profile googlev1.Profile
			if err := profile.UnmarshalVT(raw); err != nil {
				return nil, err
			}
			var total int64
			for _, sample := range profile.Sample {
				total += sample.Value[0]
			}
			fmt.Println("pyroscope", total)
		}
	}
	return connect.NewResponse(&pushv1.PushResponse{}), nil
}

func unzip(reader io.Reader) ([]byte, error) {
	plain, err := gzip.NewReader(reader)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(plain)
}

func service(resource pcommon.Resource) string {
	name, _ := resource.Attributes().Get("service.name")
	return name.AsString()
}

// The samples of a request, and their innermost function that has most.
func profiles(body []byte) error {
	request := pprofileotlp.NewExportRequest()
	if err := request.UnmarshalProto(body); err != nil {
		return err
	}
	dictionary := request.Profiles().Dictionary()
	for _, resource := range request.Profiles().ResourceProfiles().All() {
		var total, most int64
		leaves, top := map[string]int64{}, ""
		for _, scope := range resource.ScopeProfiles().All() {
			for _, profile := range scope.Profiles().All() {
				for _, sample := range profile.Samples().All() {
					value := sample.Values().At(0)
					total += value
					stack := dictionary.StackTable().At(int(sample.StackIndex()))
					if stack.LocationIndices().Len() == 0 {
						continue
					}
					location := dictionary.LocationTable().At(int(stack.LocationIndices().At(0)))
					function := dictionary.FunctionTable().At(int(location.Lines().At(0).FunctionIndex()))
					name := dictionary.StringTable().At(int(function.NameStrindex()))
					leaves[name] += value
					if leaves[name] > most {
						most, top = leaves[name], name
					}
				}
			}
		}
		fmt.Println("otlp-profiles", total, service(resource.Resource()), most, top)
	}
	return nil
}

func traces(body []byte) error {
	request := ptraceotlp.NewExportRequest()
	if err := request.UnmarshalProto(body); err != nil {
		return err
	}
	for _, resource := range request.Traces().ResourceSpans().All() {
		for _, scope := range resource.ScopeSpans().All() {
			for _, span := range scope.Spans().All() {
				fmt.Println("otlp-traces", service(resource.Resource()), span.Name(), span.Kind(), span.TraceID(), span.SpanID(), span.ParentSpanID())
			}
		}
	}
	return nil
}

func otlp(read func([]byte) error) http.HandlerFunc {
	return func(answer http.ResponseWriter, request *http.Request) {
		body, err := unzip(request.Body)
		if err == nil && request.Header.Get("Content-Type") != "application/x-protobuf" {
			err = fmt.Errorf("the type is %s", request.Header.Get("Content-Type"))
		}
		if err == nil {
			err = read(body)
		}
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	path, handler := pushv1connect.NewPusherServiceHandler(sink{})
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	mux.Handle("/v1development/profiles", otlp(profiles))
	mux.Handle("/v1/traces", otlp(traces))
	fmt.Println("listening", listener.Addr())
	panic(http.Serve(listener, mux))
}
