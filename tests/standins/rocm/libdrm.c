/* A stand-in for libdrm and libdrm_amdgpu: what AMD's library asks of it before it looks into /sys.

   Every node belongs to amdgpu and to a device of AMD's.  Of the queries those of a device's id
   and memory are answered, from /sys; others are refused, as by a kernel that does not know them.
   The layouts are those of the public interfaces of libdrm and amdgpu. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VRAM_USAGE = 0x10, VRAM_GTT = 0x14, DEV_INFO = 0x16 };

struct version {
  int major, minor, patch, name_length;
  char *name;
  int date_length;
  char *date;
  int about_length;
  char *about;
};

struct pci {
  uint16_t vendor, device, subvendor, subdevice;
  uint8_t revision;
};

struct device {
  char **nodes;
  int available_nodes, bus_type;
  void *bus;
  struct pci *pci;
};

static char driver[] = "amdgpu", date[] = "20150101", about[] = "";

struct version *drmGetVersion(int node) {
  (void)node;
  struct version *told = calloc(1, sizeof *told);
  if (told)
    *told = (struct version){3, 61, 0, sizeof driver - 1, driver, sizeof date - 1, date, 0, about};
  return told;
}

void drmFreeVersion(struct version *told) { free(told); }

int drmGetDevice(int node, struct device **device) {
  (void)node;
  struct {
    struct device device;
    struct pci pci;
    uint64_t bus;
  } *told = calloc(1, sizeof *told);
  if (!told)
    return -ENOMEM;
  told->pci.vendor = 0x1002;
  told->device.bus = &told->bus;
  told->device.pci = &told->pci;
  *device = &told->device;
  return 0;
}

void drmFreeDevice(struct device **device) {
  free(*device);
  *device = NULL;
}

/* Read a number from a file of the node's device; 0 where there is none. */
static uint64_t number(int node, const char *format, const char *file) {
  char link[64], target[64], path[192];
  uint64_t found = 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", node);
  ssize_t length = readlink(link, target, sizeof target - 1);
  if (length <= 0)
    return 0;
  target[length] = 0;
  snprintf(path, sizeof path, "/sys/class/drm/%s/device/%s", strrchr(target, '/') + 1, file);
  FILE *opened = fopen(path, "r");
  if (opened) {
    if (fscanf(opened, format, &found) != 1)
      found = 0;
    fclose(opened);
  }
  return found;
}

int drmCommandWrite(int node, unsigned long command, void *data, unsigned long size) {
  struct {
    uint64_t answer;
    uint32_t size, query;
  } *asked = data;
  uint64_t told[3] = {0};
  (void)command, (void)size;
  if (asked->query == DEV_INFO)
    told[0] = number(node, "%lx", "device");
  else if (asked->query == VRAM_GTT)
    told[0] = number(node, "%lu", "mem_info_vram_total");
  else if (asked->query != VRAM_USAGE)
    return -EINVAL;
  memcpy((void *)asked->answer, told, asked->size < sizeof told ? asked->size : sizeof told);
  return 0;
}

int amdgpu_device_initialize(int node, uint32_t *major, uint32_t *minor, void **device) {
  static int any;
  (void)node;
  *major = 3, *minor = 61, *device = &any;
  return 0;
}

int amdgpu_device_deinitialize(void *device) {
  (void)device;
  return 0;
}

const char *amdgpu_get_marketing_name(void *device) {
  (void)device;
  return "AMD Instinct";
}
