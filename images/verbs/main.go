// A device plugin for verbs: it gives the devices of a directory to any number of pods, under one resource.
//
// It works with every kind of device, also with Soft-RoCE, which has no PCI address. Without a verbs device (uverbs0, ...) in
// the directory its slots are unhealthy, so that no pod is put on the node: rdma_cm is there without a device, too.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socket = "ferry-verbs.sock"
	every  = time.Second
)

var (
	resource  = flag.String("resource", "rdma/shared", "name of the resource")
	slots     = flag.Int("slots", 16, "pods and containers that may share the devices")
	directory = flag.String("devices", "/dev/infiniband", "directory of the devices on this node")
)

// devices lists the device files that verbs need; nothing, when there is no verbs device. Files that manage the fabric
// (umad*, issm*) are not for pods.
func devices() []string {
	names, verbs := []string{}, false
	entries, _ := os.ReadDir(*directory)
	for _, entry := range entries {
		device := strings.HasPrefix(entry.Name(), "uverbs")
		if entry.Type()&os.ModeCharDevice != 0 && (device || entry.Name() == "rdma_cm") {
			names = append(names, entry.Name())
			verbs = verbs || device
		}
	}
	if !verbs {
		return nil
	}
	return names
}

type plugin struct {
	api.UnimplementedDevicePluginServer
	over context.Context
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch tells the kubelet how many slots there are, again whenever devices come or go.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	told := ""
	for p.over.Err() == nil && stream.Context().Err() == nil {
		health := api.Unhealthy
		if len(devices()) > 0 {
			health = api.Healthy
		}
		if health != told {
			list := &api.ListAndWatchResponse{}
			for i := range *slots {
				list.Devices = append(list.Devices, &api.Device{ID: fmt.Sprintf("slot-%d", i), Health: health})
			}
			if err := stream.Send(list); err != nil {
				return err
			}
			log.Printf("%d slots of %s are %s", *slots, *resource, health)
			told = health
		}
		time.Sleep(every)
	}
	return nil
}

// Allocate gives a container the devices, at the paths where libraries look for them.
func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for range asked.ContainerRequests {
		given := &api.ContainerAllocateResponse{}
		for _, name := range devices() {
			given.Devices = append(given.Devices, &api.DeviceSpec{
				HostPath: filepath.Join(*directory, name), ContainerPath: filepath.Join("/dev/infiniband", name), Permissions: "rw",
			})
		}
		if len(given.Devices) == 0 {
			return nil, fmt.Errorf("there is no verbs device (uverbs*) in %s", *directory)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

// serve registers with the kubelet, and returns when the kubelet has forgotten: it removes all sockets when it starts.
func serve() error {
	path := filepath.Join(api.DevicePluginPath, socket)
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	over, end := context.WithCancel(context.Background())
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{over: over})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	defer end()
	kubelet, err := grpc.NewClient("unix:"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: *resource}
	soon, cancel := context.WithTimeout(over, 10*time.Second)
	defer cancel()
	if _, err := api.NewRegistrationClient(kubelet).Register(soon, request); err != nil {
		return err
	}
	log.Printf("registered %s", *resource)
	for {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the kubelet has started again")
		}
		time.Sleep(every)
	}
}

func main() {
	flag.Parse()
	for {
		log.Print(serve())
		time.Sleep(every)
	}
}
